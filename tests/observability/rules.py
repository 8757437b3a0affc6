"""The committed alerts, read without a parser of YAML: the file is ours, and its form is known."""

import re
from pathlib import Path
from typing import Final, NamedTuple

FOLDER: Final = Path(__file__).resolve().parents[2] / "deploy" / "prometheus"
_FILE: Final = FOLDER / "alerts.yml"
_RULE: Final = re.compile(r"^      - (alert|record): (\S+)\n(.*?)(?=^ {0,6}\S|\Z)", re.M | re.S)
_EXPR: Final = re.compile(r"^        expr: (.*?)(?=^        \S|\Z)", re.M | re.S)
_RUNBOOK: Final = re.compile(r"^          runbook_url: (\S+)$", re.M)
#: Thresholds that a test does not come to in seconds, or not without filling a disk.
_LOWERED: Final = {") > 900": ") > 3", "_size_bytes < 0.1": "_size_bytes < 1.1"}


class Rule(NamedTuple):
    """A rule: `alert` or `record`, its name, what it asks for, and its runbook."""

    kind: str
    name: str
    expression: str
    runbook: str


def rules() -> list[Rule]:
    """All of them."""
    found = []
    for kind, name, body in _RULE.findall(_FILE.read_text()):
        expression, runbook = _EXPR.search(body), _RUNBOOK.search(body)
        assert expression, name
        found.append(Rule(kind, name, expression[1], runbook[1] if runbook else ""))
    return found


def quick() -> str:
    """The file with seconds in place of minutes and hours, and thresholds that can be met.

    How long something has to last before an alert fires is promtool's business: here a second.
    """
    text = re.sub(r"for: \d+m\b", "for: 1s", _FILE.read_text())
    text = re.sub(r"(\d)[mh]\b", r"\1s", text)
    for before, after in _LOWERED.items():
        assert before in text, before
        text = text.replace(before, after)
    return text
