"""Write the dashboards as Grafana reads them."""

from pathlib import Path

from deploy.grafana.boards import BOARDS
from deploy.grafana.layout import to_json

FOLDER = Path(__file__).with_name("dashboards")


def files() -> dict[str, str]:
    """Return the JSON of all dashboards, by file name."""
    return {f"{board.uid}.json": to_json(board) for board in BOARDS}


def write() -> None:
    """Write all dashboards."""
    FOLDER.mkdir(exist_ok=True)
    for name, text in files().items():
        (FOLDER / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write()
