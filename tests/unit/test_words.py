"""The words that code and documentation do not use, for the field has its own: in names and texts.

`python -m tests.unit.test_words [FILE OR FOLDER ...]` shows where they are.
"""

import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_ROOT = Path(__file__).parents[2]
_FOLDERS = ("deploy", "examples", "pidlease", "proxy")
_PAGES = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "docs")

#: In comments, docstrings and messages; and what is said instead.
_PROSE = {
    r"told|telling": "acknowledge, return, report, log",
    r"nobody|somebody|whom": "the producer, client, server, operator ...",
    r"doors?": "listener",
    r"keeper|upkeep": "maintenance",
    r"flying|under way|on (?:its|their) way": "in flight, pending, running",
    r"frontier": "applied offset",
    r"rereading": "catch-up, replay",
    r"behind": "after, following",
    r"no sense": "invalid; say what is wrong",
    r"lanes?": "queue, in-flight batches of a producer",
    r"holes?": "sequence gap",
    r"surroundings": "context",
    r"[Ss]ee (?:`|the (?:module|class|port|method))": "@override, or say it",
}
#: The same, in code only: pages may speak of people, and tell one thing from another.
_CODE_PROSE = {
    r"tells?": "acknowledge, return, report, log",
    r"whose|who": "the producer, client, server, operator ...",
}
#: In pages only: parts of the code have these names.
_PAGE_PROSE = {
    r"judg\w+": "validate, validation",
    r"rings?(?! buffers?)": "lease table",
    r"log side": "Kafka-backed log, embedded log",
}
#: As a part of a name, between underscores.
_NAMES = {
    "told", "tell", "tells", "whose", "who", "nobody", "door", "doors", "keeper", "upkeep",
    "flying", "frontier", "rereading", "behind", "surroundings", "lane", "lanes", "taking",
    "asking", "link", "links", "hole", "holes",
}  # fmt: skip
_HOLE = {"hole_ms"}  # a field of the snapshots' manifest
#: Where such a word is right: file -> what is found there. With the reason.
_ALLOWED: dict[str, set[str]] = {
    # The rules' own names: a sequence lies behind another in a space of numbers that wraps.
    "pidlease/core/judge.py": {"_is_behind", "holes"},
    "pidlease/core/rules.py": {"holes"},
    "pidlease/core/state.py": {"behind"},
    # A key of the manifest.
    "pidlease/engine/partition.py": _HOLE | {"holes"},  # and a field of the rules
    "pidlease/engine/producer_table.py": {"hole_ms"},
    "pidlease/engine/recovery.py": {"hole_ms"},
    "pidlease/log/kafka/kafka_log_store.py": _HOLE,
    "pidlease/repair/losses.py": {"hole_ms"},
    "pidlease/storage/snapshot_rows.py": {"hole_ms"},
    "pidlease/storage/snapshot_files.py": {"tell"},  # a method of a file
    # A kind of finding in the report, and in its JSON.
    "pidlease/verify/partition_check.py": {"HOLE"},
    "pidlease/verify/verify_report.py": {"HOLE", "hole"},
    "proxy/cli/verify_command.py": {"hole"},
    "docs/operate/alerts.md": {"ring"},  # an alert's name
    "deploy/reference/metrics_page.py": {"door"},  # a label of metrics
    "deploy/grafana/boards/fencing.py": {"door"},
    "deploy/grafana/boards/leases.py": {"door"},
    "pidlease/engine/lease_service.py": _HOLE,
    "pidlease/engine/leases/leases.py": _HOLE,
    "pidlease/engine/named_leases.py": _HOLE,
    "pidlease/observability/metric_catalogue.py": {"door"},  # a label of metrics
    "proxy/cli/copy_command.py": {"behind"},  # a column of the comparison
    # Names of the core, the copier, the engine and the tests of these.
    "pidlease/spark/audit/first_pass.py": {"holes"},
    "tests/spark/rebuild/test_replay.py": {"hole_ms"},
    "tests/spark/sink/test_once.py": {"holes"},
    # The format of the sink's file.
    "pidlease/spark/sink/run_state.py": {"who"},
    "tests/spark/sink/test_run_state.py": {"who"},
    "pidlease/copier/comparison.py": {"behind"},  # a column of copy --verify
    # The option CopySettings.who, and the field of a checkpoint in the group's offsets.
    "pidlease/copier/copier.py": {"who"},
    "pidlease/copier/copy_checkpoint.py": {"who"},
    "pidlease/copier/partition_copy.py": {"who"},
    "pidlease/copier/settings.py": {"who"},
}  # fmt: skip


class Found(NamedTuple):
    """A word, and where it is."""

    file: str
    line: int
    word: str
    instead: str


def _compiled(*prose: dict[str, str]) -> list[tuple[re.Pattern[str], str]]:
    return [
        (re.compile(rf"\b(?:{pattern})(?![\w'])", re.IGNORECASE), say)
        for each in prose
        for pattern, say in each.items()
    ]


_EACH_OF_CODE = _compiled(_PROSE, _CODE_PROSE)
_EACH_OF_PAGES = _compiled(_PROSE, _PAGE_PROSE)
#: Parts of a page that quote the code: fences, inline code, addresses of links, comments.
_QUOTED = re.compile(
    r"^ *(```+).*?^ *\1 *$|``.+?``|`[^`\n]+`|\]\([^)\s]*\)|<!--.*?-->|https?://\S+", re.M | re.S
)


def words_of(path: Path) -> Iterator[Found]:
    """The words of one file that should be others."""
    return _of_page(path) if path.suffix == ".md" else _of_code(path)


def _of_page(path: Path) -> Iterator[Found]:
    file = path.relative_to(_ROOT).as_posix()
    allowed = _ALLOWED.get(file, set())
    text = _QUOTED.sub(lambda quoted: re.sub(r"[^\n]", " ", quoted[0]), path.read_text())
    for pattern, say in _EACH_OF_PAGES:
        for match in pattern.finditer(text):
            if match.group() not in allowed:
                yield Found(file, text[: match.start()].count("\n") + 1, match.group(), say)


def _of_code(path: Path) -> Iterator[Found]:
    file = path.relative_to(_ROOT).as_posix()
    allowed = _ALLOWED.get(file, set())
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        if token.type == tokenize.NAME:
            for part in set(token.string.lower().strip("_").split("_")) & _NAMES:
                if token.string not in allowed:
                    yield Found(file, token.start[0], token.string, part)
        elif token.type in (tokenize.COMMENT, tokenize.STRING):
            for pattern, say in _EACH_OF_CODE:
                for match in pattern.finditer(token.string):
                    if match.group() not in allowed:
                        line = token.start[0] + token.string[: match.start()].count("\n")
                        yield Found(file, line, match.group(), say)


def _files(places: list[Path]) -> Iterator[Path]:
    for place in places:
        found = [*place.rglob("*.py"), *place.rglob("*.md")] if place.is_dir() else [place]
        yield from sorted(found)


def _check(places: tuple[str, ...]) -> None:
    files = _files([_ROOT / each for each in places])
    found = [each for path in files for each in words_of(path)]
    assert not found, "\n".join(f"{e.file}:{e.line}: {e.word} ({e.instead})" for e in found)


def test_words_of_the_code() -> None:
    _check(_FOLDERS)


def test_words_of_the_pages() -> None:
    _check(_PAGES)


def test_what_is_allowed_is_there() -> None:
    for file, allowed in _ALLOWED.items():
        text = (_ROOT / file).read_text()
        assert {word for word in allowed if word not in text} == set()


if __name__ == "__main__":
    given = [Path(each).resolve() for each in sys.argv[1:]] or [_ROOT / each for each in _FOLDERS]
    hits = [each for path in _files(given) for each in words_of(path)]
    for each in hits:
        print(f"{each.file}:{each.line}: {each.word} -> {each.instead}")
    print(len(hits))
