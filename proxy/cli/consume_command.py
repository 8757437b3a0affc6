"""`pidlease consume`: print the records of a topic."""

import asyncio
import logging
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, Final

import typer
from aiokafka import AIOKafkaConsumer
from aiokafka.errors import CorruptRecordException, KafkaError, OffsetOutOfRangeError
from aiokafka.structs import TopicPartition

from pidlease.core.topic_partition import TopicPartition as CheckedPartition
from pidlease.storage.topics.topic_store import illegal_name
from proxy.cli.client_login import CommandConfig, command_security
from proxy.cli.console import cannot_run, printable, refused, stderr
from proxy.cli.kafka_topics import (
    SERVERS,
    KafkaListener,
    ServersOption,
    check_reachable,
    connected_cluster,
    kafka_unreachable,
    partitions_of,
)
from proxy.cli.stop_signals import stopped_by_signals
from proxy.cli.text_records import json_line, text_line
from proxy.cli.unreadable_batch import UnreadableBatch, find_unreadable

_POLL_MS: Final = 200
#: Polls without a record after which the command checks that the server is there.
_POLLS_PER_CHECK: Final = 25
#: Between two attempts of the client to connect.
_RETRY_MS: Final = 1000
#: The most records between two flushes of stdout.
_RECORDS_AT_ONCE: Final = 1000


@dataclass(frozen=True)
class _Request:
    """What to print, and where to begin and end."""

    topic: str
    partitions: list[int] | None
    from_beginning: bool
    offset: int | None
    records_max: int | None
    exit_at_end: bool
    as_json: bool
    separator: bytes | None
    headers: bool

    def line(self, record: Any) -> bytes:  # noqa: ANN401 - aiokafka's ConsumerRecord
        """Return a record as a line."""
        if self.as_json:
            return json_line(record.partition, record.offset, record.timestamp, record.key,
                             record.value, record.headers)  # fmt: skip
        headers = record.headers if self.headers else None
        return text_line(record.key, record.value, headers, self.separator)


def consume(  # noqa: PLR0913 - an option each
    topic: Annotated[str, typer.Argument(help="The topic's name.")],
    *,
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning", help="From the first record of each partition.")
    ] = False,
    offset: Annotated[
        int | None, typer.Option(min=0, help="From this offset of each partition.")
    ] = None,
    partition: Annotated[
        list[int] | None,
        typer.Option(min=0, help="Only this partition; may be repeated. Default: all."),
    ] = None,
    records_max: Annotated[
        int | None, typer.Option("--max", min=1, help="End after so many records.")
    ] = None,
    exit_at_end: Annotated[
        bool, typer.Option("--exit-at-end", help="End where the partitions end at the start.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print each record as a line of JSON.")
    ] = False,
    key_separator: Annotated[
        str | None, typer.Option(help="Print the key and this before the value.")
    ] = None,
    headers: Annotated[
        bool, typer.Option("--headers", help="Print NAME=VALUE,... and a tab in front.")
    ] = False,
    servers: ServersOption = SERVERS,
    command_config: CommandConfig = None,
) -> None:
    """Print the records of a topic, each as a line; without options, those that come from now on.

    Records keep their order within a partition, not across partitions. Records of open and aborted transactions are not printed, nor is the record header `pidlease`. Nothing is committed to a consumer group.

    At SIGINT and SIGTERM, and if the reader of its output closes the pipe, the command ends with 0.

    A batch that is damaged, or that its producer wrote wrongly, ends the command after the records before it. The error names its offset, and the options that continue after it.

    Exit codes:
    1: there is no such topic or offset, or a batch cannot be read
    2: the server was not reached
    """  # noqa: E501 - a paragraph is one line in the help
    if reason := illegal_name(topic):
        raise cannot_run(reason)
    if from_beginning and offset is not None:
        raise cannot_run("give either --from-beginning or --offset")
    if as_json and (headers or key_separator is not None):
        raise cannot_run("--json prints keys and headers already")
    request = _Request(
        topic, partition, from_beginning, offset, records_max, exit_at_end, as_json,
        None if key_separator is None else key_separator.encode(), headers,
    )  # fmt: skip
    server = KafkaListener(servers, command_security(command_config))
    # Errors are reported once, by this command.
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    with suppress(BrokenPipeError):  # the reader has seen enough, like `head`
        asyncio.run(_consume(server, request))


async def _consume(server: KafkaListener, request: _Request) -> None:
    places = await _places(server, request)
    # Of an open or aborted transaction, nothing is printed.
    consumer = AIOKafkaConsumer(
        bootstrap_servers=server.servers, client_id="pidlease-cli", enable_auto_commit=False,
        auto_offset_reset="none", isolation_level="read_committed", retry_backoff_ms=_RETRY_MS,
        **server.security.connection.aiokafka_options(),
    )  # fmt: skip
    try:
        try:
            await consumer.start()
        except (KafkaError, OSError) as error:
            raise kafka_unreachable(server.servers, error) from None
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - this is one
        with stopped_by_signals(task.cancel), suppress(asyncio.CancelledError):
            await _print(server, consumer, places, request)
    except OffsetOutOfRangeError as error:
        ((place, at),) = list(error.args[0].items())[:1]
        raise refused(f"{place.topic}-{place.partition} has no offset {at}") from None
    except KafkaError as error:
        raise cannot_run(f"{server.servers}: {error}") from None
    finally:
        # aiokafka passes on the end of its own tasks if they were waiting to try again.
        with suppress(asyncio.CancelledError):
            await consumer.stop()


async def _print(
    server: KafkaListener,
    consumer: AIOKafkaConsumer,
    places: list[TopicPartition],
    request: _Request,
) -> None:
    consumer.assign(places)
    ends = await consumer.end_offsets(places)
    if request.from_beginning:
        starts = await consumer.beginning_offsets(places)
    elif request.offset is not None:
        starts = dict.fromkeys(places, request.offset)
    else:
        starts = ends
    for place, start in starts.items():
        consumer.seek(place, start)
    await _Printer(server, consumer, request, starts, ends).run()


class _Printer:
    """Prints the records of some partitions.

    Parameters:
        consumer: has the partitions, and their positions.
        starts: the offset of each partition to begin at.
        ends: the offset after the last record of each, now.
    """

    def __init__(
        self,
        server: KafkaListener,
        consumer: AIOKafkaConsumer,
        request: _Request,
        starts: Mapping[TopicPartition, int],
        ends: Mapping[TopicPartition, int],
    ) -> None:
        self._server: Final = server
        self._consumer: Final = consumer
        self._request: Final = request
        self._ends: Final = ends
        self._out: Final = sys.stdout.buffer
        self._left = request.records_max
        #: The offset after the last printed record of each partition.
        self._printed: Final = dict(starts)
        # One after the other is checked off, so that a thousand partitions cost nothing.
        self._open: Final = {place for place, end in ends.items() if starts[place] < end}

    async def run(self) -> None:
        """Print until the end, or until there is an error."""
        polls, problem = 0, ""
        while self._left != 0 and (self._open or not self._request.exit_at_end):
            try:
                found = await self._consumer.getmany(
                    timeout_ms=_POLL_MS, max_records=self._records_at_once
                )
            except Exception as error:  # noqa: BLE001 - each codec has errors of its own
                await self._after_unreadable(error)
                continue
            polls = 0 if found else polls + 1
            if polls == _POLLS_PER_CHECK:
                polls, before = 0, problem
                problem = await check_reachable(self._server)
                if problem and not before:
                    text = f"pidlease: {problem}; trying again"
                    stderr().print(text, style="yellow", markup=False)
            self._write(found)
            await self._check_off()

    @property
    def _records_at_once(self) -> int:
        return _RECORDS_AT_ONCE if self._left is None else min(self._left, _RECORDS_AT_ONCE)

    async def _check_off(self) -> None:
        if self._request.exit_at_end:
            for place in list(self._open):
                if await self._consumer.position(place) >= self._ends[place]:
                    self._open.discard(place)

    def _write(self, found: Mapping[TopicPartition, list[Any]]) -> None:
        """Print records; those after the end are not wanted."""
        count = 0
        for place, records in found.items():
            for record in records:
                if not self._request.exit_at_end or record.offset < self._ends[place]:
                    self._out.write(self._request.line(record))
                    count += 1
            self._printed[place] = records[-1].offset + 1
        if count:
            self._out.flush()
        if self._left is not None:
            self._left -= count

    # ------------------------------------------------------------------ unreadable batches

    async def _after_unreadable(self, error: Exception) -> None:
        """Print the records before a batch that cannot be read, and end the command.

        The client drops the records before it, those of other partitions, too.

        Parameters:
            error: of the client.
        """
        if isinstance(error, KafkaError) and not isinstance(error, CorruptRecordException):
            raise error
        found = await self._unreadable()
        if found is None and self._pause_complete():
            return
        if found is None:
            raise refused(f"{self._request.topic}: a batch cannot be read: {error}") from None
        for place, offset in self._printed.items():
            self._consumer.seek(place, offset)
        place = TopicPartition(found.place.topic, found.place.partition)
        await self._print_before(place, found.first_offset)
        if self._left == 0:
            return
        if self._request.exit_at_end and found.first_offset >= self._ends[place]:
            self._open.discard(place)
            self._consumer.pause(place)
            return
        raise refused(
            f"{place.topic}-{place.partition}, offset {found.first_offset}: the batch up to offset"
            f" {found.next_offset - 1} is damaged, or was written wrongly; continue with"
            f" --partition {place.partition} --offset {found.next_offset}"
            f" ({printable(found.reason)})"
        ) from None

    def _pause_complete(self) -> bool:
        """Read no more of the partitions that are printed to their end; False: none was read.

        A batch that came after the end may be unreadable, and is not wanted.
        """
        complete: set[Any] = set()
        if self._request.exit_at_end:
            complete = self._consumer.assignment() - self._open - self._consumer.paused()
        self._consumer.pause(*complete)
        for place in self._open if complete else ():
            self._consumer.seek(place, self._printed[place])
        return bool(complete)

    async def _unreadable(self) -> UnreadableBatch | None:
        wanted = self._open if self._request.exit_at_end else self._printed.keys()
        positions = {
            CheckedPartition(*place): self._printed[place]
            for place in wanted
            if (self._consumer.highwater(place) or 0) > self._printed[place]
        }
        async with connected_cluster(self._server) as cluster:
            return await find_unreadable(cluster, positions)

    async def _print_before(self, place: TopicPartition, offset: int) -> None:
        """Print the records of a partition before an offset, one by one: the next one fails."""
        polls = 0
        while self._left != 0 and self._printed[place] < offset and polls < _POLLS_PER_CHECK:
            try:
                found = await self._consumer.getmany(place, timeout_ms=_POLL_MS, max_records=1)
            except Exception:  # noqa: BLE001 - the unreadable batch
                return
            if any(record.offset >= offset for records in found.values() for record in records):
                return
            polls = 0 if found else polls + 1
            self._write(found)


async def _places(server: KafkaListener, request: _Request) -> list[TopicPartition]:
    """Return the partitions to read; end the command if one does not exist."""
    existing = await partitions_of(server, request.topic)
    numbers = sorted(set(request.partitions or existing))
    for number in numbers:
        if number not in existing:
            raise refused(f"topic {request.topic} has {len(existing)} partitions, and no {number}")
    return [TopicPartition(request.topic, number) for number in numbers]
