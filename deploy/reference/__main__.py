"""Write the pages of docs/reference that are made from the code."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from deploy.reference.command_line_page import command_line_page
from deploy.reference.http_api_page import http_api_page
from deploy.reference.kafka_api_page import kafka_api_page
from deploy.reference.metrics_page import metrics_page
from deploy.reference.settings_page import settings_page

FOLDER: Final = Path(__file__).resolve().parents[2] / "docs" / "reference"
#: The function that makes each page, by file name.
PAGES: Final[Mapping[str, Callable[[], str]]] = {
    "command-line.md": command_line_page,
    "http-api.md": http_api_page,
    "kafka-api-versions.md": kafka_api_page,
    "metrics.md": metrics_page,
    "settings.md": settings_page,
}


def write() -> None:
    """Write all pages."""
    for name, page in PAGES.items():
        (FOLDER / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    write()
