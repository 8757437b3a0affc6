"""`pidlease topics` against a stub that answers what a server may answer."""

import http.server
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from pidlease.testing.loopback_ports import free_ports
from tests.unit.cli.datadir import run

SETTINGS: dict[str, Any] = {
    "retention.ms": {"value": "86400000", "source": "start"},
    "pidlease.deduplication": {"value": "off", "source": "topic"},
    "pidlease.policies": {"value": "none,kafka", "source": "all topics"},
    "pidlease.initial": {"value": "policy", "source": "default"},
}
TOPIC: dict[str, Any] = {"name": "orders", "partitions": 1200, "settings": SETTINGS}
_LARGE = 9_223_372_036_854_775_800
FIRST: dict[str, Any] = {"partition": 0, "log_start": _LARGE, "log_end": _LARGE + 7, "reason": ""}
LAST: dict[str, Any] = {
    "partition": 1199, "log_start": 3, "log_end": None, "reason": "[red]is damaged",
}  # fmt: skip


@dataclass
class Stub:
    """A server, and what it was asked."""

    url: str = ""
    answers: list[tuple[int, object]] = field(default_factory=list)
    asked: list[tuple[str, str, object]] = field(default_factory=list)

    def run(self, *words: str) -> tuple[int, str, str]:
        result = run("topics", *words, "--url", self.url)
        return result.exit_code, result.stdout, result.stderr


@contextmanager
def stub(*answers: tuple[int, object]) -> Iterator[Stub]:
    """Answers one after the other; the last again and again."""
    found = Stub(answers=list(answers))

    class Handler(http.server.BaseHTTPRequestHandler):
        def answer(self) -> None:
            size = int(self.headers.get("content-length", 0))
            body = self.rfile.read(size)
            found.asked.append((self.command, self.path, json.loads(body) if body else None))
            code, answer = found.answers.pop(0) if len(found.answers) > 1 else found.answers[0]
            self.send_response(code)
            self.end_headers()
            self.wfile.write(answer if isinstance(answer, bytes) else json.dumps(answer).encode())

        do_GET = do_PATCH = answer  # noqa: N815 - as the library asks for them

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Say nothing."""

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        found.url = f"http://127.0.0.1:{server.server_port}"
        yield found
        server.shutdown()
        thread.join()


# ---------------------------------------------------------------------- what is shown


def test_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    odd = {**TOPIC, "name": "[red]a&b"}
    first, rest = {"topics": [odd], "more": True}, {"topics": [TOPIC], "more": False}
    with stub((200, first), (200, rest)) as server:
        code, shown, _ = server.run("list")
    assert code == 0
    for each in ("[red]a&b", "orders", "1,200", "off", "none,kafka", "policy"):
        assert each in shown, each
    assert server.asked == [
        ("GET", "/v1/topics?after=", None),
        ("GET", "/v1/topics?after=%5Bred%5Da%26b", None),
    ]
    with stub((200, first), (200, rest)) as server:
        code, shown, _ = server.run("list", "--json")
    assert (code, json.loads(shown)) == (0, [odd, TOPIC])
    with stub((200, {"topics": [], "more": True})) as server:
        assert server.run("list")[0] == 0, "no end of nothing"


def test_describe(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = [{"partitions": [FIRST], "more": True}, {"partitions": [LAST], "more": False}]
    answers = [(200, TOPIC), (200, pages[0]), (200, pages[1])]
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")  # rich takes stdout for a terminal
    with stub(*answers, *answers) as server:
        code, shown, _ = server.run("describe", "orders")
        asked = ["/v1/topics/orders", *(f"/v1/topics/orders/partitions?after={n}" for n in (-1, 0))]
        assert (code, server.asked) == (0, [("GET", path, None) for path in asked])
        shown = re.sub(r"\x1b\[[\d;]*m", "", shown)
        lines = shown.splitlines()
        assert lines[0].startswith("orders, 1,200 partitions")
        for said in (
            ("pidlease.deduplication", "off", "the topic"),
            ("pidlease.policies", "none,kafka", "all topics"),
            ("retention.ms", "86400000", "the server's start"),
            ("pidlease.initial", "policy", "default"),
            (" 0 ", f"{_LARGE:,}", f"{_LARGE + 7:,}"),
            ("1,199", " 3 ", "unknown"),
            ("partition 1199: [red]is damaged",),
        ):
            assert any(all(each in line for each in said) for line in lines), said
        found = json.loads(server.run("describe", "orders", "--json")[1])
        assert found == {**TOPIC, "offsets": [FIRST, LAST]}
    with stub((200, {"settings": SETTINGS})) as server:
        code, shown, _ = server.run("describe", "--all")
        assert (code, server.asked) == (0, [("GET", "/v1/topic-defaults", None)])
        assert "all topics" in shown.splitlines()[0]
        assert json.loads(server.run("describe", "--all", "--json")[1]) == {"settings": SETTINGS}


# ---------------------------------------------------------------------- what is changed


@pytest.mark.parametrize(
    ("words", "path", "change"),
    [
        (["alter", "orders", "pidlease.initial=zero"], "orders", {"pidlease.initial": "zero"}),
        (
            ["alter", "a.b", "retention.ms=-1", "pidlease.policies=none,kafka", "x=y=z", "v="],
            "a.b",
            {"retention.ms": "-1", "pidlease.policies": "none,kafka", "x": "y=z", "v": ""},
        ),
        (["alter", "--all", "pidlease.initial=zero"], "", {"pidlease.initial": "zero"}),
        (["alter", "pidlease.initial=zero", "--all"], "", {"pidlease.initial": "zero"}),
        (["alter", "orders", "--unset", "a", "--unset", "b"], "orders", {"a": None, "b": None}),
        (["alter", "orders", "c=d", "--unset", "a"], "orders", {"c": "d", "a": None}),
        (["alter", "--all", "--unset", "pidlease.initial"], "", {"pidlease.initial": None}),
    ],
)
def test_changes(words: list[str], path: str, change: dict[str, str | None]) -> None:
    answer = TOPIC if path else {"settings": SETTINGS}
    with stub((200, answer)) as server:
        code, shown, said = server.run(*words)
        assert (code, said) == (0, "")
        assert "pidlease.deduplication" in shown
        where = f"/v1/topics/{path}/settings" if path else "/v1/topic-defaults"
        assert server.asked == [("PATCH", where, change)]
        assert json.loads(server.run(*words, "--json")[1]) == answer


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["alter", "orders"], "say what to change"),
        (["alter", "--all"], "say what to change"),
        (["alter", "pidlease.initial=zero"], "--all"),
        (["alter", "pidlease.initial=zero", "a=b"], "--all"),
        (["alter", "orders", "pidlease.initial"], "'pidlease.initial' is not NAME=VALUE"),
        (["alter", "orders", "=zero"], "'=zero' is not NAME=VALUE"),
        (["alter", "orders", "a=b", "a=c"], "a is given twice"),
        (["alter", "--all", "orders", "a=b"], "'orders' is not NAME=VALUE"),
        (["alter", "or/ders", "a=b"], "ASCII"),
        (["alter", "..", "a=b"], "'..'"),
        (["alter", "", "a=b"], "empty"),
        (["alter", "--unset", "a"], "name a topic"),
        (["alter", "orders", "--unset", "a=b"], "'a=b' is no name"),
        (["alter", "--all", "--unset", ""], "no name"),
        (["alter", "orders", "a=b", "--unset", "a"], "a is set and unset"),
        (["alter", "--all", "--partitions", "3"], "--partitions is for one topic"),
        (["alter", "orders", "a=b", "--partitions", "3"], "--partitions is for one topic"),
        (["alter", "orders", "--partitions", "0"], ""),
        (["describe"], "name a topic, or say --all"),
        (["describe", "orders", "--all"], "name a topic, or say --all"),
        (["describe", "x" * 250], "249"),
        (["alter"], "name a topic, or say --all"),
        (["describe", "a", "b"], ""),
        (["list", "a"], ""),
    ],
)
def test_what_cannot_be_meant_is_not_asked(words: list[str], said: str) -> None:
    with stub((200, TOPIC)) as server:
        code, shown, complaint = server.run(*words)
    assert (code, shown, server.asked) == (2, "", [])
    assert said in complaint
    if said:
        assert complaint.count("\n") == 1


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (["show", "orders"], ["describe", "orders"]),
        (["show", "--all"], ["describe", "--all"]),
        (["set", "orders", "a=b", "c=d"], ["alter", "orders", "a=b", "c=d"]),
        (["set", "--all", "a=b"], ["alter", "--all", "a=b"]),
        (["unset", "orders", "a", "b"], ["alter", "orders", "--unset", "a", "--unset", "b"]),
        (["unset", "--all", "a"], ["alter", "--all", "--unset", "a"]),
    ],
    ids=str,
)
def test_an_old_form_does_the_same_and_warns(old: list[str], new: list[str]) -> None:
    answers: list[tuple[int, object]] = [(200, {"settings": SETTINGS} if "--all" in old else TOPIC)]
    if new == ["describe", "orders"]:
        answers.append((200, {"partitions": [FIRST], "more": False}))
    with stub(*answers, *answers) as server:
        code, shown, said = server.run(*old)
        assert (code, said.count("\n")) == (0, 1)
        assert said.startswith(f"pidlease: `topics {old[0]}` is deprecated; use `topics {new[0]}")
        asked = server.asked.copy()
        server.asked.clear()
        assert server.run(*new) == (0, shown, "")
        assert server.asked == asked
        assert server.run(old[0])[0] == 2


# ---------------------------------------------------------------------- what goes wrong


@pytest.mark.parametrize(
    ("code", "answer", "exit_code", "said"),
    [
        (404, {"error": "there is no topic orders", "field": "topic"}, 1, "no topic orders"),
        (
            404,
            {"detail": "no topic orders", "error": "old", "field": "topic"},
            1,
            "no topic orders",
        ),
        (400, {"error": "a.b is [red]wrong", "field": "a.b"}, 1, "a.b is [red]wrong"),
        (503, {"error": "the server recovers", "field": None}, 2, "the server recovers"),
        (404, {"error": "Not Found", "field": None}, 2, "is no pidlease (404"),
        (404, b"<html>", 2, "is no pidlease (404"),
        (400, {"detail": "x"}, 2, "is no pidlease (400"),
        (500, {"error": "x", "field": "y"}, 2, "is no pidlease (500"),
        (200, b"<html>", 2, "no pidlease answers at"),
        (200, [], 2, "no pidlease of this version"),
        (200, {"name": "orders"}, 2, "no pidlease of this version"),
    ],
)
def test_what_a_server_refuses(code: int, answer: object, exit_code: int, said: str) -> None:
    for words in (["describe", "orders"], ["alter", "orders", "--unset", "a.b"]):
        with stub((code, answer)) as server:
            found, shown, complaint = server.run(*words)
        assert (found, shown) == (exit_code, "")
        if not (words[0] == "alter" and answer == b"<html>" and code == 200):
            assert said in complaint
        assert complaint.startswith("pidlease: ")
        assert complaint.count("\n") == 1


def test_nobody_there() -> None:
    url = f"http://127.0.0.1:{free_ports(1)[0]}"
    for words in (
        ["list"],
        ["describe", "--all"],
        ["alter", "orders", "a=b"],
        ["alter", "--all", "--unset", "a"],
    ):
        result = run("topics", *words, "--url", url)
        assert (result.exit_code, result.stdout) == (2, "")
        assert f"no pidlease answers at {url}" in result.stderr
        assert result.stderr.count("\n") == 1


def test_who_gets_no_answer_to_a_change_is_told_to_look() -> None:
    with stub((200, b"")) as server:
        code, _, complaint = server.run("alter", "orders", "a=b")
    assert code == 2
    assert "check whether the change was made" in complaint
