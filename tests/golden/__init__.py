"""The golden histories: one data file that every implementation of the rules runs.

The core, both doors, the replay, Spark's audit and the rebuild parametrize over `HISTORIES`, so
that the rules cannot fork. `histories.json` is written by hand from the design's section on
judging; nothing in it was computed by the code that it judges. Two things in it that section does
not say, they follow the core: PIDs that no block holds ("never": unknown, but for epoch), and a
name's binding that fences before "nothing known" is asked (the section lists it behind).

Its fields:

``name``     kebab-case, and the pytest id.
``rule``     which rule of the design it proves; one of `RULES_PROVED`.
``policy``   strict, kafka, monotonic or epoch.
``age``      of the PID's block: young, old (than the lease length), or never (no block holds it).
``granted``  the last generation granted to the producer's name, -1 or absent for none. A step may
             carry its own, which holds from that step on.
``start``    the state to begin with. Null wherever a producer can get there by itself, so that
             doors, which cannot be seeded, run nearly all; see `History.seeded`.
``steps``    each with ``batch``, ``verdict``, ``next`` and, for what is admitted, ``offset``: the
             place of its first record in a log that holds nothing else, counted from 0 (seeded
             histories: from the end of the start's last batch).

A verdict's absent fields mean "none" (-1, false). ``next`` is the state after the step, the same
as before where nothing was admitted; null while nothing is known. ``batches`` in it is optional:
absent means "not looked at" in ``next``, and "none" in ``start``.

Use::

    @pytest.mark.parametrize("history", HISTORIES, ids=history_id)
    def test_history(history: History) -> None: ...
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

PolicyName = Literal["strict", "kafka", "monotonic", "epoch"]
AgeName = Literal["young", "old", "never"]
KindName = Literal["admit", "duplicate", "gap", "overlap", "fenced", "malformed", "unknown"]

POLICIES: Final = ("strict", "kafka", "monotonic", "epoch")
AGES: Final = ("young", "old", "never")
KINDS: Final = ("admit", "duplicate", "gap", "overlap", "fenced", "malformed", "unknown")

#: The design's rules, with the number of the list in "Judging" and the sub-rules of 5 by name.
RULES_PROVED: Final = (
    "1 malformed",
    "2 nothing known",
    "3 fenced",
    "4 generation higher",
    "5 exact",
    "5 behind",
    "5 low mark",
    "5 straddles",
    "5 next",
    "5 beyond",
)

_FILE: Final = Path(__file__).with_name("histories.json")


@dataclass(frozen=True, slots=True)
class GoldenBatch:
    """What a producer sends. `crc` stands for the bytes: another number, other bytes."""

    generation: int
    first: int
    last: int
    count: int
    crc: int = 0


@dataclass(frozen=True, slots=True)
class GoldenVerdict:
    """What it must be answered; -1 where the answer has no such field."""

    kind: KindName
    offset: int = -1
    expected: int = -1
    generation: int = -1
    differs: bool = False


@dataclass(frozen=True, slots=True)
class GoldenAppended:
    """One of the last five batches."""

    first: int
    last: int
    offset: int
    crc: int = 0


@dataclass(frozen=True, slots=True)
class GoldenState:
    """What is known of the producer on the partition; `batches` is None where not looked at."""

    generation: int
    high: int
    lowest: int
    batches: tuple[GoldenAppended, ...] | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """One batch, its verdict, and what is known afterwards.

    Attributes:
        batch: what arrives.
        granted: the last generation granted to the producer's name, -1 for none.
        verdict: the answer.
        offset: where an admitted batch goes; -1 otherwise.
        next: the state afterwards.
    """

    batch: GoldenBatch
    granted: int
    verdict: GoldenVerdict
    offset: int
    next: GoldenState | None


@dataclass(frozen=True, slots=True)
class History:
    """A producer's history on one partition."""

    name: str
    rule: str
    policy: PolicyName
    age: AgeName
    start: GoldenState | None
    steps: tuple[Step, ...]

    @property
    def seeded(self) -> bool:
        """Whether it begins with a state that no door can be brought to in a test."""
        return self.start is not None

    @property
    def named(self) -> bool:
        """Whether it needs a producer with a name, to which generations are granted."""
        return any(step.granted >= 0 for step in self.steps)


def history_id(history: History) -> str:
    """The pytest id of a history."""
    return history.name


def load(path: Path = _FILE) -> tuple[History, ...]:
    """Read and check a file of histories.

    Raises:
        ValueError: a history is not well formed; the message names it. (Whether it is right is
            for the tests to say.)
    """
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    histories = tuple(_history(raw) for raw in document["histories"])
    names = [history.name for history in histories]
    repeated = {name for name in names if names.count(name) > 1}
    if repeated:
        raise ValueError(f"histories with the same name: {sorted(repeated)}")
    return histories


def _history(raw: dict[str, Any]) -> History:
    name = raw["name"]
    try:
        granted = raw.get("granted", -1)
        steps: list[Step] = []
        for step in raw["steps"]:
            granted = step.get("granted", granted)
            steps.append(_step(step, granted))
        history = History(
            name, raw["rule"], raw["policy"], raw["age"], _state(raw["start"]), tuple(steps)
        )
        _check(history)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"history {name}: {error!r}") from error
    return history


def _step(raw: dict[str, Any], granted: int) -> Step:
    unknown = raw.keys() - {"batch", "granted", "verdict", "offset", "next"}
    if unknown:
        raise ValueError(f"fields unknown here: {sorted(unknown)}")
    return Step(
        GoldenBatch(**raw["batch"]),
        granted,
        GoldenVerdict(**raw["verdict"]),
        raw.get("offset", -1),
        _state(raw["next"]),
    )


def _state(raw: dict[str, Any] | None) -> GoldenState | None:
    if raw is None:
        return None
    batches = raw.get("batches")
    return GoldenState(
        raw["generation"],
        raw["high"],
        raw["lowest"],
        None if batches is None else tuple(GoldenAppended(**batch) for batch in batches),
    )


def _check(history: History) -> None:
    """What holds of any history, right or wrong: known words, dense offsets, state kept."""
    if history.rule not in RULES_PROVED:
        raise ValueError(f"no rule {history.rule!r}")
    if history.policy not in POLICIES or history.age not in AGES:
        raise ValueError(f"no policy {history.policy!r} or no age {history.age!r}")
    before, log_end = history.start, None if history.seeded else 0
    for place, step in enumerate(history.steps):
        if step.verdict.kind not in KINDS:
            raise ValueError(f"step {place}: no verdict {step.verdict.kind!r}")
        admitted = step.verdict.kind == "admit"
        if admitted != (step.offset >= 0):
            raise ValueError(f"step {place}: an offset belongs to what is admitted, and only there")
        if admitted:
            if log_end not in (None, step.offset):
                raise ValueError(f"step {place}: the log ends at {log_end}, not {step.offset}")
            log_end = step.offset + step.batch.count
        elif not _same(before, step.next):
            raise ValueError(f"step {place}: nothing was admitted, yet the state changes")
        before = step.next


def _same(before: GoldenState | None, after: GoldenState | None) -> bool:
    """Whether two states agree in what both of them look at."""
    if before is None or after is None:
        return before is after
    looked_at = before.batches is not None and after.batches is not None
    numbers_agree = (before.generation, before.high, before.lowest) == (
        after.generation,
        after.high,
        after.lowest,
    )
    return numbers_agree and (not looked_at or before.batches == after.batches)


HISTORIES: Final = load()
