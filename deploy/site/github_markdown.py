"""Rewrites Markdown as GitHub shows it for mkdocs: lists, and links to files outside of docs/."""

import posixpath
import re
from collections.abc import Callable, Iterator
from typing import Final

_FENCE: Final = re.compile(r"\s*(```+|~~~+)")
_ITEM: Final = re.compile(r"( *)((?:[-*+]|\d{1,9}[.)]) +)(?=\S)")
_MARKDOWN_URL: Final = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^()\s]+)\)")
_INDENT: Final = 4

#: Gets a path in the repository and an anchor; returns a URL, or None for a link to leave out.
Target = Callable[[str, str], str | None]


def indent_lists(text: str) -> str:
    """Indent nested lists by four, and begin lists after an empty line, as mkdocs needs it."""
    return "".join(_indented(text.splitlines(keepends=True)))


def _indented(lines: list[str]) -> Iterator[str]:
    columns: list[int] = []  # where the contents of the open items begin
    before = ""
    fence: str | None = None
    removed, added = 0, ""
    for line in lines:
        if fence is not None:
            yield added + line[min(removed, len(line) - len(line.lstrip(" "))) :]
            if line.strip() == fence:
                fence = None
            continue
        if not line.strip():
            yield line
            before = ""
            continue
        indent = len(line) - len(line.lstrip(" "))
        while columns and indent < columns[-1]:
            columns.pop()
        removed, added = (columns[-1] if columns else 0), " " * _INDENT * len(columns)
        if opening := _FENCE.match(line):
            fence = opening[1]
        elif item := _ITEM.match(line):
            if before and not _ITEM.match(before) and not columns:
                yield "\n"
            columns.append(len(item[0]))
        yield added + line[removed:]
        before = line if fence is None else ""


def rewrite_urls(text: str, source: str, target: Target) -> str:
    """Replace the links to other files of the repository.

    Parameters:
        text: Markdown.
        source: the path of its file in the repository.
    """

    def replaced(match: re.Match[str]) -> str:
        shown, address = match.groups()
        path, hash_, anchor = address.partition("#")
        if not path or ":" in path or path.startswith("/"):
            return match[0]
        found = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        url = target(found, hash_ + anchor)
        return shown if url is None else f"[{shown}]({url})"

    return "".join(
        part if code else _MARKDOWN_URL.sub(replaced, part) for code, part in _parts(text)
    )


def _parts(text: str) -> Iterator[tuple[bool, str]]:
    """Split into code blocks and the text between them."""
    fence: str | None = None
    part: list[str] = []
    for line in text.splitlines(keepends=True):
        if fence is None and (opening := _FENCE.match(line)):
            yield False, "".join(part)
            part, fence = [line], opening[1]
        else:
            part.append(line)
            if fence is not None and line.strip() == fence:
                yield True, "".join(part)
                part, fence = [], None
    yield fence is not None, "".join(part)
