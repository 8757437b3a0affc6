"""What dashboards and alerts say, held against the catalogue and the page of the runbooks."""

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from deploy.grafana.__main__ import FOLDER, files
from deploy.prometheus.__main__ import ALERTS, RUNBOOKS, main, page_address, project_base
from deploy.prometheus.__main__ import files as alert_files
from pidlease.observability.metric_catalogue import CATALOGUE
from tests.observability.dashboards import Asked, asked, boards, panels, variables
from tests.observability.rules import rules

_ROOT: Final = Path(__file__).resolve().parents[2]
_LABELS: Final = {each.exposed: {*each.labels} for each in CATALOGUE.values()}
_BY_HISTOGRAM: Final = {
    f"{name}{suffix}": {*each.labels, "le"}
    for name, each in CATALOGUE.items() if each.kind == "histogram"
    for suffix in ("_bucket", "_count", "_sum")
}  # fmt: skip
_OF_PROCESSES: Final[dict[str, set[str]]] = {
    "up": set(), "process_cpu_seconds_total": set(), "process_resident_memory_bytes": set(),
    "process_start_time_seconds": set(),
}  # fmt: skip
#: The last two are those of a target in Kubernetes; elsewhere they are empty.
_ALWAYS: Final = {"job", "instance", "__name__", "namespace", "service"}
_NAME: Final = re.compile(r"\b(?:pidlease[\w:]*|process_\w+|up\b)")
_SELECTOR: Final = re.compile(r"([a-zA-Z_:][\w:]*)?\{([^{}]*)\}")
_MATCHER: Final = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)\s*(?:\"|')")
_GROUPED: Final = re.compile(r"\b(?:by|on|ignoring|without) \(([^)]*)\)")


def recorded() -> dict[str, set[str]]:
    """Our own rules, with the labels of what they are made from."""
    return {
        rule.name: labels_of(rule.expression, known()) for rule in rules() if rule.kind == "record"
    }


def known() -> dict[str, set[str]]:
    return {**_LABELS, **_BY_HISTOGRAM, **_OF_PROCESSES}


def without_strings(expression: str) -> str:
    return re.sub(r'"[^"]*"', '""', expression)


def labels_of(expression: str, names: dict[str, set[str]]) -> set[str]:
    """Those that the metrics of an expression have; each metric must be there."""
    found = set(_NAME.findall(without_strings(expression)))
    assert found, expression
    assert found <= names.keys(), f"{found - names.keys()} is exposed by nobody: {expression}"
    return set[str]().union(*(names[each] for each in found))


def check(expression: str) -> set[str]:
    """Names and labels of an expression; the labels that its series may have."""
    names = {**known(), **recorded()}
    labels = labels_of(expression, names)
    for name, matchers in _SELECTOR.findall(expression):
        for label in _MATCHER.findall(matchers):
            assert label in names[name] | _ALWAYS, f"{name} has no label {label}: {expression}"
    for grouped in _GROUPED.findall(expression):
        wanted = {each.strip() for each in grouped.split(",")}
        assert wanted <= labels | _ALWAYS, f"{wanted - labels} is no label: {expression}"
    return labels


def test_the_dashboards_are_as_they_are_written() -> None:
    """`python -m deploy.grafana` writes them."""
    assert {path.name: path.read_text() for path in FOLDER.glob("*")} == files()


def test_what_panels_ask_for_exists() -> None:
    """Metrics, their labels, and the labels that name lines."""
    for each in asked():
        _check_panel(each)


def _check_panel(each: Asked) -> None:
    labels = check(each.expression)
    assert each.plain
    grouped = [set(re.split(r", *", found)) for found in _GROUPED.findall(each.expression)]
    left = set[str]().union(*grouped) if grouped else labels | _ALWAYS
    named = set(re.findall(r"{{(\w+)}}", each.legend))
    assert named <= left, f"{named - left} names no line: {each.expression}"


def test_what_can_be_chosen_exists() -> None:
    for metric, label in variables():
        names = re.findall(r"pidlease_\w+", metric)
        assert names
        for name in names:
            assert name in _LABELS, name
            assert label in _LABELS[name] | _ALWAYS, (name, label)


def test_every_panel_says_what_normal_is() -> None:
    for board in boards():
        titles = [panel["title"] for panel in panels(board)]
        assert len(set(titles)) == len(titles), board["title"]
        assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
        chosen = {each["name"] for each in board["templating"]["list"]}
        assert chosen >= {"datasource"}
        for panel in panels(board):
            assert panel["description"].endswith("."), panel["title"]
            assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
            assert panel["datasource"]["uid"] == "${datasource}"
            used = set(re.findall(r"\$([a-z]\w*)", str(panel["targets"])))
            assert used <= chosen, panel["title"]


def test_every_metric_is_shown() -> None:
    """Of servers, copiers and Spark; of clients, what somebody on call looks at."""
    shown = " ".join(each.expression for each in asked())
    hidden = [each.exposed for each in CATALOGUE.values() if each.exposed not in shown]
    ours = [each for each in hidden if not each.startswith("pidlease_client_")]
    assert ours == []


def test_what_an_alert_asks_for_exists() -> None:
    for rule in rules():
        check(rule.expression)


def _sections() -> Iterator[str]:
    """The anchors of the runbooks."""
    _, _, text = (_ROOT / RUNBOOKS).read_text().partition("\n## Runbooks\n")
    own = re.split(r"^## ", text, flags=re.M)[0]
    for title in re.findall(r"^### (.*)$", own, re.M):
        yield title.lower().replace(" ", "-")


def test_every_alert_has_a_runbook_and_every_runbook_an_alert() -> None:
    alerts = [rule for rule in rules() if rule.kind == "alert"]
    assert len(alerts) >= 11
    prefix = page_address(project_base()) + "#"
    assert prefix.startswith("https://")
    assert all(rule.runbook.startswith(prefix) for rule in alerts)
    named = [rule.runbook.removeprefix(prefix) for rule in alerts]
    assert sorted(named) == sorted(_sections())
    for rule, anchor in zip(alerts, named, strict=True):
        assert anchor.replace("-", "") == rule.name.lower()


def test_the_addresses_of_runbooks_are_as_they_are_written() -> None:
    """`python -m deploy.prometheus` writes them, from the project's URL of its docs."""
    texts = alert_files()
    assert len(texts) > 1
    assert {path: path.read_text() for path in texts} == texts
    urls = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]["urls"]
    assert all(url.startswith(project_base()) for url in urls.values())


def test_runbooks_of_ones_own(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    committed = ALERTS.read_text()
    page = "https://wiki.example/pidlease"
    monkeypatch.setattr(sys, "argv", ["deploy.prometheus", "--runbook-base", page])
    main()
    printed = capsys.readouterr().out
    assert f"runbook_url: {page}#pidlease-down\n" in printed
    assert printed == committed.replace(page_address(project_base()), page)
    assert ALERTS.read_text() == committed
