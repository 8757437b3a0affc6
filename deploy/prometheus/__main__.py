"""Write the runbooks' addresses into the alerts, or print the alerts with addresses of your own."""

import argparse
import re
import sys
import tomllib
from pathlib import Path
from typing import Final

_FOLDER: Final = Path(__file__).parent
_PROJECT: Final = _FOLDER.parents[1] / "pyproject.toml"
ALERTS: Final = _FOLDER / "alerts.yml"
#: The page of the runbooks, with a heading for each alert.
RUNBOOKS: Final = "docs/operate/alerts.md"
_LINE: Final = re.compile(r"^( +runbook_url: )\S*?(#\S+)$", re.MULTILINE)


def project_base() -> str:
    """Return the address of the published docs: the project's URL `Documentation`."""
    urls = tomllib.loads(_PROJECT.read_text(encoding="utf-8"))["project"]["urls"]
    return str(urls["Documentation"])


def page_address(base: str) -> str:
    """Return the address of the runbooks' page, as the docs' site publishes it."""
    page = RUNBOOKS.removeprefix("docs/").removesuffix(".md")
    return f"{base.rstrip('/')}/{page}/"


def with_addresses(text: str, page: str) -> str:
    """Return alerts, or their tests, with all runbooks on this page."""
    return _LINE.sub(lambda line: f"{line[1]}{page}{line[2]}", text)


def files() -> dict[Path, str]:
    """Return the contents of all files that have addresses of runbooks."""
    page = page_address(project_base())
    paths = (ALERTS, *sorted((_FOLDER / "tests").glob("*.yml")))
    return {path: with_addresses(path.read_text(encoding="utf-8"), page) for path in paths}


def main() -> None:
    """Write the files; with an address of the user's own, print the alerts instead."""
    parser = argparse.ArgumentParser(prog="python -m deploy.prometheus", description=__doc__)
    parser.add_argument(
        "--runbook-base",
        metavar="URL",
        help="print the alerts with runbooks on this page of your own, and write nothing; each"
        " link is URL#ALERT, for example https://wiki.example/pidlease-alerts#pidlease-down",
    )
    page = parser.parse_args().runbook_base
    if page is not None:
        sys.stdout.write(with_addresses(ALERTS.read_text(encoding="utf-8"), page))
        return
    for path, text in files().items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
