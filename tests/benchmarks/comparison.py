"""Two contenders under one load, by turns, and what the rounds say."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tests.benchmarks.contenders import Contender, Servers
from tests.benchmarks.load import Load, LoadProcess, Timing
from tests.servers.pidlease import PidleaseServer

ROUNDS_MIN = 5


@dataclass(frozen=True)
class Comparison:
    """`ours` is to be at least `target` times as fast as `theirs`."""

    name: str
    ours: Contender
    theirs: Contender
    load: Load
    unit: str  # "MB/s" or "records/s"
    target: float | None  # None: only shown
    rounds_factor: int = 1  # a target close to 1 needs more rounds to stand out from the noise
    default: bool = True  # part of a run without --only


@dataclass(frozen=True)
class Sample:
    """One round of one contender."""

    speed: float  # over all bursts together: pauses count
    bursts_s: tuple[float, ...]
    client_cpu_s: float
    server_cpu_s: float


@dataclass(frozen=True)
class Spread:
    """Smallest, middle and largest of some numbers."""

    min: float
    median: float
    max: float

    @classmethod
    def of(cls, numbers: Sequence[float]) -> Spread:
        """The spread of at least one number."""
        return cls(min(numbers), statistics.median(numbers), max(numbers))


@dataclass
class Result:
    """All rounds of a comparison; round n of `ours` and of `theirs` ran by turns."""

    comparison: Comparison
    ours: list[Sample] = field(default_factory=list)
    theirs: list[Sample] = field(default_factory=list)

    @property
    def ratio(self) -> Spread:
        """Of the speeds, round by round: what slows down the whole machine hits both."""
        pairs = zip(self.ours, self.theirs, strict=True)
        return Spread.of([ours.speed / theirs.speed for ours, theirs in pairs])

    @property
    def burst_ratio(self) -> float:
        """The median over all pairs of neighbouring bursts.

        Steadier than `ratio` on a busy machine, but blind to rare pauses of a server.
        """
        return statistics.median(
            theirs_s / ours_s
            for ours, theirs in zip(self.ours, self.theirs, strict=True)
            for ours_s, theirs_s in zip(ours.bursts_s, theirs.bursts_s, strict=True)
        )

    @property
    def cpu_ratio(self) -> float:
        """Server processor time, theirs / ours: like `ratio`, above 1 means that ours is better.

        Other users of the machine disturb it far less than they disturb the clock.
        """
        ours = statistics.median(sample.server_cpu_s for sample in self.ours)
        theirs = statistics.median(sample.server_cpu_s for sample in self.theirs)
        return theirs / ours if ours else 1.0

    @property
    def met(self) -> bool | None:
        """Whether the median reaches the target; None without one."""
        target = self.comparison.target
        return None if target is None else self.ratio.median >= target


def _speed(comparison: Comparison, burst_s: float) -> float:
    load = comparison.load
    return (load.burst_megabytes if comparison.unit == "MB/s" else load.records) / burst_s


class _Side:
    """One contender with its producer, for the time of one comparison."""

    def __init__(self, comparison: Comparison, contender: Contender, servers: Servers) -> None:
        self._comparison = comparison
        self._contender = contender
        self._servers = servers
        server = servers.get(contender)
        self._process = server.process
        self._timings: list[Timing] = []
        self._server_cpu_s = 0.0
        # Two clients of one server write to topics of their own, and two ways to one Kafka.
        topic, client = comparison.name, contender.client
        topic += "-front" if contender.kind == "in front" else ""
        self.producer = LoadProcess(
            comparison.load,
            server.bootstrap,
            topic if client == "librdkafka" else f"{topic}-{client}",
            client=client,
            leases=server.http_url if isinstance(server, PidleaseServer) else "",
            marked=contender.kind == "in front" and client == "LeasedProducer",
        )

    def begin_round(self) -> None:
        self._timings = []
        self._server_cpu_s = 0.0

    def take_turn(self) -> None:
        before_s = self._process.cpu_s()
        self._timings.append(self.producer.burst(self._comparison.load.records))
        self._server_cpu_s += self._process.cpu_s() - before_s

    def end_round(self) -> Sample:
        """What the round says, once all its records are proven to be stored."""
        self.producer.verify()
        self._servers.settle(self._contender)
        bursts_s = tuple(timing.elapsed_s for timing in self._timings)
        return Sample(
            speed=_speed(self._comparison, statistics.mean(bursts_s)),
            bursts_s=bursts_s,
            client_cpu_s=sum(timing.client_cpu_s for timing in self._timings),
            server_cpu_s=self._server_cpu_s,
        )


def compare(
    comparison: Comparison,
    servers: Servers,
    *,
    rounds: int,
    warmup: int,
    show: Callable[[str], None],
) -> Result:
    """Bursts A B A B ...; the first `warmup` rounds are thrown away (JIT, page cache)."""
    result = Result(comparison)
    total = rounds * comparison.rounds_factor
    ours = _Side(comparison, comparison.ours, servers)
    theirs = _Side(comparison, comparison.theirs, servers)
    with ours.producer, theirs.producer:
        ours.producer.connect()
        theirs.producer.connect()
        for number in range(-warmup, total):
            label = f"round {number + 1} of {total}" if number >= 0 else "warm-up"
            show(f"{comparison.name}, {label}")
            samples = _round(ours, theirs, comparison.load.bursts)
            if number >= 0:
                result.ours.append(samples[0])
                result.theirs.append(samples[1])
    return result


def _round(ours: _Side, theirs: _Side, bursts: int) -> tuple[Sample, Sample]:
    ours.begin_round()
    theirs.begin_round()
    for _ in range(bursts):
        ours.take_turn()
        theirs.take_turn()
    return ours.end_round(), theirs.end_round()
