"""Load the lines of a file into a topic, each exactly once, even after crashes.

    python examples/resume_file_load.py --file orders.csv --topic orders --name orders-2026-05 \
        --servers 127.0.0.1:9092 --leases http://127.0.0.1:8080 --key-column 1

After a crash of this process, of its machine or of the server, run the same command again. It sends
every line again, with the number of the line as its sequence_id: the server appends those that are
not in the log yet, and reports the others as duplicates.

Exit codes: 0 every line is in the log; 1 not finished, run it again; 2 nothing was sent, because
lines would be lost or doubled; 3 every line is in the log, except those in the reject file.
"""

import argparse
import json
import os
import sys
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

from pidlease.client import BlockingProducer, ProducerError, Sent, partition_for_key

DONE: Final = 0
NOT_FINISHED: Final = 1
IMPOSSIBLE: Final = 2
SOME_REFUSED: Final = 3
#: The most unacknowledged lines; with more, wait for the oldest.
_UNACKNOWLEDGED_MAX: Final = 10_000


class ImpossibleError(Exception):
    """Lines would be lost or doubled."""


class Line(NamedTuple):
    """A line of the file.

    Attributes:
        number: from 1; it is the record's sequence_id.
        start: the position of its first byte in the file.
        text: without the end of line.
    """

    number: int
    start: int
    text: bytes


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--file", type=Path, required=True, help="one record in each line")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--servers", required=True, help="HOST:PORT of the Kafka listener")
    parser.add_argument("--leases", required=True, help="http://HOST:PORT of the HTTP listener")
    parser.add_argument("--name", required=True, help="of this load; each file has its own")
    parser.add_argument("--key-column", type=int, help="column of the key, from 1; default: no key")
    parser.add_argument("--separator", default=",", help="between columns (default: a comma)")
    parser.add_argument("--policy", choices=("strict", "monotonic"), default="strict")
    parser.add_argument("--max-record-bytes", type=int, default=1_000_000)
    parser.add_argument("--rejects", type=Path, help="reject file (default: FILE.rejected)")
    parser.add_argument("--plan", type=Path, help="what must not change (default: FILE.load.json)")
    parser.add_argument("--report-every", type=int, default=100_000, help="lines (default: 100000)")
    given = parser.parse_args()
    given.rejects = given.rejects or given.file.with_name(given.file.name + ".rejected")
    given.plan = given.plan or given.file.with_name(given.file.name + ".load.json")
    if given.key_column is not None and given.key_column < 1:
        parser.error("--key-column counts from 1")
    if given.report_every < 1:
        parser.error("--report-every is at least 1")
    return given


class Plan:
    """The options that decide a line's partition and whether it is refused, kept between runs.

    They must not change. With more partitions, keys would go to others. With another limit, other
    lines would be refused; a line that was left out once would later count as a duplicate.

    Parameters:
        partitions: the topic's present number of partitions.

    Attributes:
        partitions: the number of partitions to write to, from the first run.
    """

    def __init__(self, given: argparse.Namespace, partitions: int) -> None:
        self._path: Final[Path] = given.plan
        size = given.file.stat().st_size
        fixed = {
            "topic": given.topic,
            "name": given.name,
            "policy": given.policy,
            "key_column": given.key_column,
            "separator": given.separator,
            "max_record_bytes": given.max_record_bytes,
        }
        self._found: dict[str, Any] = {
            "fixed": fixed, "partitions": partitions, "file_bytes": size, "stored": []
        }  # fmt: skip
        self._new: Final = not self._path.exists()
        if not self._new:
            self._found = json.loads(self._path.read_text(encoding="utf-8"))
        self.partitions: Final[int] = self._found["partitions"]
        for name, before in self._found["fixed"].items():
            if fixed[name] != before:
                raise ImpossibleError(f"{name} was {before!r} in the first run ({self._path})")
        if size != self._found["file_bytes"]:
            raise ImpossibleError(f"{given.file} has changed since the first run ({self._path})")
        if partitions < self.partitions:
            raise ImpossibleError(f"topic {given.topic} had {self.partitions} partitions, now less")

    def begin(self, producer: BlockingProducer, topic: str) -> None:
        """Lease the partitions, check the server's state of the name, and store the plan durably.

        Raises:
            ImpossibleError: the state has expired, or another load has used the name.
        """
        for partition in range(self.partitions):
            producer.lease(topic, partition)
            if self._new and producer.last_sequence_id(topic, partition) >= 0:
                raise ImpossibleError(
                    f"another load has used this --name: its numbers would be taken for these. Take"
                    f" another one, or bring back the plan of that load to {self._path}"
                )
            if (
                partition in self._found["stored"]
                and producer.last_sequence_id(topic, partition) < 0
            ):
                raise ImpossibleError(
                    f"the server knows nothing any more of what it has stored in {topic}-"
                    f"{partition} for this name: the lease is over, or the topic is a new one. To"
                    f" load all lines once more, remove {self._path} and take another --name"
                )
        self._save()

    def stored(self, partition: int) -> None:
        """Note that the partition has stored lines of this load."""
        if partition not in self._found["stored"]:
            self._found["stored"].append(partition)
            self._save()

    def _save(self) -> None:
        aside = self._path.with_name(self._path.name + ".part")
        with aside.open("w", encoding="utf-8") as file:
            json.dump(self._found, file)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(self._path)
        folder = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


class Load:
    """One run: sends the lines, and counts the results."""

    def __init__(
        self,
        given: argparse.Namespace,
        producer: BlockingProducer,
        plan: Plan,
        rejects: IO[bytes],
    ) -> None:
        self._given: Final = given
        self._producer: Final = producer
        self._plan: Final = plan
        self._rejects: Final = rejects
        self._unacknowledged: Final[deque[Future[Sent]]] = deque()
        self.stored = 0
        self.before = 0
        self.refused = 0

    def run(self) -> None:
        """Send every line, and wait for every result.

        Raises:
            ProducerError: a line was not stored; run the load again.
        """
        for line in lines_of(self._given.file):
            self._send(line)
            self._take_results(_UNACKNOWLEDGED_MAX)
        self._producer.flush()
        self._take_results(0)

    def _send(self, line: Line) -> None:
        try:
            key = self._key_of(line)
            # The same partition in each run. The client would send a line without a key to any
            # partition, which would compare its number with those of other lines.
            count = self._plan.partitions
            partition = line.number % count if key is None else partition_for_key(key, count)
            future = self._producer.send(
                self._given.topic, line.text, key=key, partition=partition, sequence_id=line.number
            )
        except ValueError as error:
            # The reason is the line itself, so it is refused in each run.
            self.refused += 1
            where = f"{line.number}\t{line.start}\t{error}\t".encode()
            self._rejects.write(where + line.text + b"\n")
        else:
            self._unacknowledged.append(future)

    def _key_of(self, line: Line) -> bytes | None:
        column: int | None = self._given.key_column
        if column is None:
            return None
        columns: list[bytes] = line.text.split(self._given.separator.encode(), column)
        if len(columns) < column:
            raise ValueError(f"no column {column} for the key")
        return columns[column - 1]

    def _take_results(self, most: int) -> None:
        """Count the results that have arrived; wait until at most `most` are missing."""
        waiting = self._unacknowledged
        while waiting and (len(waiting) > most or waiting[0].done()):
            sent = waiting.popleft().result()
            self._plan.stored(sent.partition)
            self.before += sent.duplicate
            self.stored += not sent.duplicate
            if (self.stored + self.before) % self._given.report_every == 0:
                say(f"{self.stored + self.before} lines are in the log")


def lines_of(path: Path) -> Iterator[Line]:
    """Yield the lines of a file."""
    start = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            yield Line(number, start, line.removesuffix(b"\n").removesuffix(b"\r"))
            start += len(line)


def load(given: argparse.Namespace) -> int:
    """Load the file; return the exit code."""
    aside = given.rejects.with_name(given.rejects.name + ".part")
    with (
        BlockingProducer(
            bootstrap_servers=given.servers,
            leases=given.leases,
            name=given.name,
            policy=given.policy,
            max_request_size=given.max_record_bytes,
            max_batch_size=min(65_536, given.max_record_bytes),
        ) as producer,
        aside.open("wb") as rejects,
    ):
        plan = Plan(given, len(producer.partitions_for(given.topic)))
        plan.begin(producer, given.topic)
        found = Load(given, producer, plan, rejects)
        found.run()
        rejects.flush()
        os.fsync(rejects.fileno())
    say(
        f"{given.file}: {found.stored + found.before + found.refused} lines: {found.stored} stored,"
        f" {found.before} were in the log before, {found.refused} refused"
    )
    if found.refused:
        aside.replace(given.rejects)
        say(f"{given.rejects}: number, first byte, reason and text of each refused line")
        return SOME_REFUSED
    aside.unlink()
    with suppress(FileNotFoundError):
        given.rejects.unlink()
    return DONE


def say(text: str) -> None:
    """Print a line at once."""
    print(text, flush=True)


def main() -> int:
    """Load the file of the command line; return the exit code."""
    given = arguments()
    try:
        return load(given)
    except (ImpossibleError, ValueError) as error:  # ValueError: an invalid option
        print(f"nothing was sent: {error}", file=sys.stderr)
        return IMPOSSIBLE
    except (ProducerError, OSError) as error:
        print(f"not finished: {type(error).__name__}: {error}", file=sys.stderr)
        print("run the same command again", file=sys.stderr)
        return NOT_FINISHED


if __name__ == "__main__":
    sys.exit(main())
