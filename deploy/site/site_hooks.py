"""Hooks of mkdocs: pages from outside docs/, links as on GitHub, and Mermaid from the site."""

import posixpath
import re
from pathlib import Path
from typing import Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from deploy.site.github_markdown import indent_lists, rewrite_urls

#: Files of the repository that are pages of the site.
_PAGES: Final = {
    "README.md": "readme.md",
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}
_SOURCES: Final = {page: source for source, page in _PAGES.items()}
#: Where the theme loads Mermaid from, and the place of the site's own copy.
_MERMAID_URL: Final = re.compile(r'"https://[^"]+/mermaid[^"]*"')
_MERMAID: Final = "assets/javascripts/mermaid.min.js"
_FOREIGN: Final = re.compile(
    r"""<(?:script|img|iframe)\b[^>]*\bsrc="?(https?:[^"\s>]+)|<link\b[^>]*\brel="?stylesheet"?[^>]*\bhref="?(https?:[^"\s>]+)"""
)
#: For browsers from before 2020, which get an empty script instead.
_POLYFILL_URL: Final = re.compile(r'"https://[^"]+/resize-observer-polyfill"')


def _root(config: MkDocsConfig) -> Path:
    return Path(config.config_file_path).parent


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Expand the folders in the navigation: their index first, the other pages by name."""
    for section in config.nav or ():
        for pages in section.values() if isinstance(section, dict) else ():
            for entry in pages if isinstance(pages, list) else ():
                for title, place in entry.items() if isinstance(entry, dict) else ():
                    if isinstance(place, str) and place.endswith("/"):
                        entry[title] = _pages_of(Path(config.docs_dir), place)
    return config


def _pages_of(docs: Path, folder: str) -> list[str]:
    found = sorted((docs / folder).glob("*.md"), key=lambda path: (path.stem != "index", path.name))
    return [path.relative_to(docs).as_posix() for path in found]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from outside docs/."""
    for source, page in _PAGES.items():
        files.append(File.generated(config, page, abs_src_path=str(_root(config) / source)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite links and lists."""
    own = page.file.src_uri
    root = _root(config)

    def target(path: str, anchor: str) -> str | None:
        found = _PAGES.get(path)
        if found is None and path.startswith("docs"):
            found = path.removeprefix("docs").removeprefix("/")
            if (root / path).is_dir():
                found = posixpath.join(found, "index.md")
        elif found is None and (root / path).is_file():
            # Shown as text by a browser, whatever it is.
            found = f"files/{path}.txt"
            if files.get_file_from_path(found) is None:
                files.append(File.generated(config, found, abs_src_path=str(root / path)))
        elif found is None:
            if not (root / path).is_dir():
                raise PluginError(f"{own}: a link to {path}, which does not exist")
            return None
        return posixpath.relpath(found, posixpath.dirname(own) or ".") + anchor

    return indent_lists(rewrite_urls(markdown, _SOURCES.get(own, f"docs/{own}"), target))


def on_post_build(config: MkDocsConfig) -> None:
    """Let the pages load nothing from other hosts; Mermaid only if `make docs` has fetched it."""
    site = Path(config.site_dir)
    (bundle,) = (site / "assets" / "javascripts").glob("bundle.*.min.js")
    _replace(bundle, _POLYFILL_URL, '"data:text/javascript,"')
    fetched = _root(config) / "build" / "mermaid" / "package" / "dist" / "mermaid.min.js"
    if not fetched.is_file():
        return
    (site / _MERMAID).write_bytes(fetched.read_bytes())
    _replace(bundle, _MERMAID_URL, f'new URL("{_MERMAID}",__md_scope).href')


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Refuse a page that would load a file from another host."""
    del config
    if found := _FOREIGN.search(output):
        raise PluginError(f"{page.file.src_uri} would load {found[1]}")
    return output


def _replace(file: Path, old: re.Pattern[str], new: str) -> None:
    text, count = old.subn(lambda _: new, file.read_text(encoding="utf-8"))
    if count != 1:
        raise PluginError(f"{file.name} has {count} of {old.pattern}")
    file.write_text(text, encoding="utf-8")
