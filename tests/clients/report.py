"""docs/reference/compatibility.md: made from what the tests of this package saw.

    python -m tests.clients.report

writes it, if the facts in build/compatibility are exactly those that are expected of a whole run.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from tests.clients.client import CODECS, READER
from tests.clients.facts import Consumed, Fact, Produced, Used, recorded
from tests.clients.tools import OPERATIONS
from tests.servers.kafka import kafka_version
from tests.streams.stream_programs import RESULT_FILE, suite_version

DOCUMENT: Final = Path(__file__).resolve().parents[2] / "docs" / "reference" / "compatibility.md"

_TEMPLATE: Final = Path(__file__).with_name("compatibility.template.md")


def expected() -> Iterator[Fact]:
    """The facts of a whole run of the tests."""
    for writer, reader in READER.items():
        yield Produced(writer.name, writer.version, CODECS)
        yield Consumed(reader.name, reader.version, writer.name)
    for tool, operations in OPERATIONS.items():
        for operation in operations:
            yield Used(tool, operation)


def render(facts: Iterable[Fact]) -> str:
    """The document."""
    known = list(facts)
    produced = {each.client: each for each in known if isinstance(each, Produced)}
    consumed = {each.client: each for each in known if isinstance(each, Consumed)}
    used: dict[str, list[str]] = {}
    for each in known:
        if isinstance(each, Used):
            used.setdefault(each.tool, []).append(each.operation)
    clients = [
        (name, each.version, ", ".join(each.codecs), consumed[name].of)
        for name, each in sorted(produced.items(), key=lambda item: item[0].lower())
    ]
    tools = [
        (name, ", ".join(_as_code(each) for each in operations))
        for name, operations in sorted(used.items())
    ]
    text = _TEMPLATE.read_text().format(
        clients=_rows(("client", "version", "producer", "its group reads records of"), clients),
        kafka=kafka_version(),
        tools=_rows(("tool", "tested with"), tools),
        suite=suite_version(),
        streams=_streams(),
    )
    return text.rstrip("\n") + "\n"


def _streams() -> str:
    """The result of the suite of Durable Streams, as its test expects it."""
    expected = json.loads(RESULT_FILE.read_text())
    rows = [(f"{expected['passed']} tests", "passed", "")]
    for result in ("failed", "skipped"):
        rows += ((name, result, reason) for name, reason in sorted(expected[result].items()))
    return _rows(("tests", "result", "reason"), rows)


def _as_code(operation: str) -> str:
    return f"`{operation}`" if operation.startswith("--") else operation


def _rows(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)


def main() -> int:
    """Write the document; 1 if not everything was seen."""
    seen, due = set(recorded()), set(expected())
    for fact in sorted(map(str, due - seen)):
        print(f"not seen: {fact}", file=sys.stderr)
    for fact in sorted(map(str, seen - due)):
        print(f"seen and not expected: {fact}", file=sys.stderr)
    if seen != due:
        return 1
    # In the order in which they are expected.
    DOCUMENT.write_text(render(fact for fact in expected() if fact in seen))
    return 0


if __name__ == "__main__":
    sys.exit(main())
