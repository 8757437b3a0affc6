"""What the committed dashboards ask Prometheus for."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

_FOLDER: Final = Path(__file__).resolve().parents[2] / "deploy" / "grafana" / "dashboards"
#: What Grafana would put in their place, for someone who looks at all there is.
_VARIABLES: Final = {
    "$__rate_interval": "15s", "$__range": "1m", "$instance": ".*", "$topic": ".*",
    "$copier": ".*", "$spark": ".*", "$client": ".*",
}  # fmt: skip


class Asked(NamedTuple):
    """A query of a panel."""

    board: str
    panel: str
    expression: str
    legend: str

    @property
    def plain(self) -> str:
        """With values in place of Grafana's variables."""
        found = self.expression
        for name, value in _VARIABLES.items():
            found = found.replace(name, value)
        assert "$" not in found, found
        return found


def boards() -> list[dict[str, Any]]:
    """All of them, as Grafana reads them."""
    return [json.loads(path.read_text()) for path in sorted(_FOLDER.glob("*.json"))]


def panels(board: dict[str, Any]) -> list[dict[str, Any]]:
    """Those that show something."""
    return [each for each in board["panels"] if each["type"] != "row"]


def asked(*uids: str) -> Iterator[Asked]:
    """The queries of some dashboards; of all, where none is named."""
    for board in boards():
        if not uids or board["uid"] in uids:
            for panel in panels(board):
                for target in panel["targets"]:
                    yield Asked(board["uid"], panel["title"], target["expr"],
                                target["legendFormat"])  # fmt: skip


def variables() -> Iterator[tuple[str, str]]:
    """The queries of what can be chosen: what is asked for, and of which label."""
    for board in boards():
        for each in board["templating"]["list"]:
            if each["type"] == "query":
                found = re.fullmatch(r"label_values\((.*), (\w+)\)", each["definition"])
                assert found, each
                yield found[1], found[2]
