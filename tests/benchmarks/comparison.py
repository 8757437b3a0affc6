"""Two contenders under one load, by turns, and what the rounds say."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tests.benchmarks.contenders import Contender, Servers
from tests.benchmarks.load import Load, LoadProcess, Timing
from tests.servers.pidlease import PidleaseServer

ROUNDS_MIN = 5
#: A unit in which less is better; all others are speeds.
P99_MS = "ms, p99"


@dataclass(frozen=True)
class Comparison:
    """`ours` is to be at least `target` times as fast as `theirs`.

    Where the unit is `P99_MS`, it is to take at most `target` times as long.
    """

    name: str
    ours: Contender
    theirs: Contender
    load: Load
    unit: str  # "MB/s", "records/s" or P99_MS
    target: float | None  # None: only shown
    rounds_factor: int = 1  # a target close to 1 needs more rounds to stand out from the noise
    starts: int = 1  # of the servers: one process is some percent faster than the next, for life
    default: bool = True  # part of a run without --only

    @property
    def less_is_better(self) -> bool:
        """Whether a ratio above 1 says that ours is the worse one."""
        return self.unit == P99_MS


@dataclass(frozen=True)
class Latency:
    """From produce() to the delivery report."""

    p50_ms: float
    p99_ms: float

    @classmethod
    def of(cls, delivered_ms: Sequence[float]) -> Latency | None:
        """Of the records of a round that were timed; None if none was."""
        if not delivered_ms:
            return None
        percentiles = statistics.quantiles(delivered_ms, n=100)
        return cls(percentiles[49], percentiles[98])


@dataclass(frozen=True)
class Sample:
    """One round of one contender."""

    speed: float  # over all bursts together: pauses count
    bursts_s: tuple[float, ...]
    client_cpu_s: float
    server_cpu_s: float
    behind_cpu_s: float = 0.0  # of the Kafka behind the server, where there is one
    latency: Latency | None = None  # where the load asks for it


@dataclass(frozen=True)
class CpuEach:
    """Processor time of servers for each request or megabyte; medians of the rounds."""

    unit: str
    front: float
    behind: float
    straight: float


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
        """Of the figures, round by round: what slows down the whole machine hits both."""
        pairs = zip(self.figures(self.ours), self.figures(self.theirs), strict=True)
        return Spread.of([ours / theirs for ours, theirs in pairs])

    def figures(self, samples: Sequence[Sample]) -> list[float]:
        """What is compared, in the comparison's unit."""
        if not self.comparison.less_is_better:
            return [sample.speed for sample in samples]
        return [latency.p99_ms for latency in latencies(samples)]

    @property
    def burst_ratio(self) -> float | None:
        """The median over all pairs of neighbouring bursts; None where their pace is given.

        Steadier than `ratio` on a busy machine, but blind to rare pauses of a server.
        """
        if self.comparison.load.per_second:
            return None
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
    def cpu_each(self) -> CpuEach | None:
        """What the servers take where one stands in front of the other; None elsewhere."""
        if self.comparison.ours.kind != "in front":
            return None
        load = self.comparison.load
        if load.single:
            unit, scale = "us a request", 1e6 / (load.records * load.bursts)
        else:
            unit, scale = "ms a MB", 1e3 / (load.burst_megabytes * load.bursts)
        front = statistics.median(sample.server_cpu_s for sample in self.ours)
        behind = statistics.median(sample.behind_cpu_s for sample in self.ours)
        straight = statistics.median(sample.server_cpu_s for sample in self.theirs)
        return CpuEach(unit, front * scale, behind * scale, straight * scale)

    @property
    def met(self) -> bool | None:
        """Whether the median is as the target wants it; None without one."""
        target = self.comparison.target
        if target is None:
            return None
        median = self.ratio.median
        return median <= target if self.comparison.less_is_better else median >= target


def latencies(samples: Sequence[Sample]) -> list[Latency]:
    """Those of the rounds, all of which must have them."""
    found = [sample.latency for sample in samples if sample.latency is not None]
    if len(found) != len(samples):
        raise ValueError(f"{len(samples) - len(found)} of {len(samples)} rounds timed no record")
    return found


def _speed(comparison: Comparison, burst_s: float) -> float:
    load = comparison.load
    return (load.burst_megabytes if comparison.unit == "MB/s" else load.records) / burst_s


class _Side:
    """One contender with its producer, for the time of one comparison."""

    def __init__(
        self, comparison: Comparison, contender: Contender, servers: Servers, start: int
    ) -> None:
        self._comparison = comparison
        self._contender = contender
        self._servers = servers
        server = servers.get(contender)
        self._process = server.process
        behind = servers.behind(contender)
        self._behind = None if behind is None else behind.process
        self._timings: list[Timing] = []
        self._server_cpu_s = 0.0
        self._behind_cpu_s = 0.0
        # Two clients of one server write to topics of their own, and two ways to one Kafka.
        topic, client = comparison.name, contender.client
        topic += "-front" if contender.kind == "in front" else ""
        topic += f"-{start}" if start else ""
        self.producer = LoadProcess(
            comparison.load,
            servers.bootstrap(contender),
            topic if client == "librdkafka" else f"{topic}-{client}",
            client=client,
            leases=server.http_url if isinstance(server, PidleaseServer) else "",
            marked=contender.kind == "in front" and client == "LeasedProducer",
            security=servers.client_settings(contender),
        )

    def begin_round(self) -> None:
        self._timings = []
        self._server_cpu_s = self._behind_cpu_s = 0.0

    def take_turn(self) -> None:
        before_s, behind_before_s = self._process.cpu_s(), self._cpu_behind_s()
        self._timings.append(self.producer.burst(self._comparison.load.records))
        self._server_cpu_s += self._process.cpu_s() - before_s
        self._behind_cpu_s += self._cpu_behind_s() - behind_before_s

    def _cpu_behind_s(self) -> float:
        return 0.0 if self._behind is None else self._behind.cpu_s()

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
            behind_cpu_s=self._behind_cpu_s,
            latency=Latency.of([each for timing in self._timings for each in timing.delivered_ms]),
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
    for start in range(comparison.starts):
        if start:
            servers.keep_only(())
        ours = _Side(comparison, comparison.ours, servers, start)
        theirs = _Side(comparison, comparison.theirs, servers, start)
        with ours.producer, theirs.producer:
            ours.producer.connect()
            theirs.producer.connect()
            for number in range(-warmup, -(-total // comparison.starts)):
                label = f"round {len(result.ours) + 1} of {total}" if number >= 0 else "warm-up"
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
