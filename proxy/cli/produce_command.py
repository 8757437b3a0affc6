"""`pidlease produce`: append the lines of stdin to a topic, each exactly once."""

from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final, NamedTuple
from urllib.parse import quote

import typer

from pidlease.client import (
    BlockingProducer,
    FencedError,
    LeaseRefusedError,
    ProducerError,
    Sent,
    partition_for_key,
)
from pidlease.client.record_arguments import check_record, record_bytes_max
from pidlease.client.settings import Codec, ProducerOptions, settings_of
from pidlease.kafka.errors import NotPidleaseError, UpstreamError, UpstreamLoginError
from pidlease.storage.topics.topic_store import illegal_name
from proxy.cli.client_login import LOGIN_HINT, CommandConfig, CommandSecurity, command_security
from proxy.cli.console import WRONG, cannot_run, refused, stderr
from proxy.cli.http_client import URL, ServerRefusedError, UnreachableError, ask
from proxy.cli.kafka_topics import SERVERS, ServersOption, kafka_unreachable
from proxy.cli.produce_progress import Report, input_bytes, show_produced
from proxy.cli.resume_plan import PlanError, ResumePlan
from proxy.cli.standard_streams import stdin
from proxy.cli.text_records import RecordLine, read_json, read_text

#: Exit code: another producer has taken over the name.
FENCED: Final = 3
#: The most unacknowledged lines; with more, wait for the oldest.
_UNACKNOWLEDGED_MAX: Final = 10_000


class _InvalidLineError(Exception):
    """A line is no record."""


class _Format(NamedTuple):
    """How a line becomes a record."""

    as_json: bool
    separator: bytes | None
    headers: list[tuple[str, bytes | None]]
    partition: int | None

    def record(self, line: bytes) -> RecordLine:
        """Read a line.

        Raises:
            ValueError: it is no record.
        """
        return read_json(line) if self.as_json else read_text(line, self.separator)


def produce(  # noqa: PLR0913 - an option each
    topic: Annotated[str, typer.Argument(help="The topic's name.")],
    *,
    key_separator: Annotated[
        str | None, typer.Option(help="Text between the key and the value of a line.")
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(help="NAME=VALUE, a header of every record; may be repeated."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Lines are JSON, as `consume --json` prints them.")
    ] = False,
    partition: Annotated[
        int | None, typer.Option(min=0, help="For all records. Default: by the key.")
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(help="Resume: run the same command again after a crash. One per input."),
    ] = None,
    plan: Annotated[
        Path | None,
        typer.Option(help="With --name: what must stay the same. Default: ./NAME.produce.json."),
    ] = None,
    skip_invalid: Annotated[
        bool, typer.Option("--skip-invalid", help="Report lines that are no records, and go on.")
    ] = False,
    compression: Annotated[Codec, typer.Option(help="Of batches.")] = "none",
    servers: ServersOption = SERVERS,
    url: Annotated[
        str, typer.Option(envvar="PIDLEASE_URL", help="The server's HTTP address, for leases.")
    ] = URL,
    command_config: CommandConfig = None,
) -> None:
    """Append the lines of stdin to a topic, each exactly once.

    A line ends with LF, which is not stored. A CR before it is.

    With --name, a line's number is its sequence number: a line that is in the log is not stored again. The plan keeps what must stay the same in each run: the options, the number of partitions, and the size of an input file. With other values nothing is sent. Nothing is sent either if the server knows the name and the plan is gone, or if the name's lease has ended (24 hours by default).

    An input that comes by a pipe must have the same lines in each run. This cannot be checked.

    Exit codes:
    0: every line is in the log
    1: not every line is
    2: the server was not reached, or lines would be lost or doubled
    3: another producer has the name
    """  # noqa: E501 - a paragraph is one line in the help
    form = _format(as_json, key_separator, header, partition)
    if reason := illegal_name(topic):
        raise cannot_run(reason)
    if plan is not None and name is None:
        raise cannot_run("--plan goes with --name")
    security = command_security(command_config)
    _check_http(url, security)
    lines = stdin().buffer
    options: ProducerOptions = {
        "bootstrap_servers": servers,
        "leases": url,
        "name": name,
        "compression_type": compression,
        "client_id": "pidlease-cli",
    }
    options.update(security.connection.security_options())  # type: ignore[typeddict-item]
    producer = _started(options)
    bytes_max = record_bytes_max(settings_of(options).max_request_size)
    run = _Run(producer, topic, form, bytes_max=bytes_max, skip_invalid=skip_invalid)
    try:
        if name is not None:
            fixed = {"topic": topic, "name": name, "json": as_json, "partition": partition,
                     "key_separator": key_separator, "bytes": input_bytes(lines)}  # fmt: skip
            run.resume(plan or Path(f"{quote(name, safe='')}.produce.json"), fixed)
        with show_produced(input_bytes(lines)) as report:
            run.send_all(lines, report)
    except (PlanError, _InvalidLineError, ProducerError, OSError) as error:
        raise _failed(error, resumable=name is not None) from None
    finally:
        producer.stop()
        run.report()
    if run.skipped:
        raise typer.Exit(WRONG)


def _started(options: ProducerOptions) -> BlockingProducer:
    """Start a producer; end the command if no server responds."""
    try:
        producer = BlockingProducer(**options)
    except ValueError as error:
        raise cannot_run(str(error)) from None
    try:
        producer.start()
    except LeaseRefusedError as error:
        raise cannot_run(f"{error}{LOGIN_HINT}") from None
    except (ProducerError, UpstreamError, OSError, ValueError) as error:
        if isinstance(error.__cause__, UpstreamLoginError):
            raise cannot_run(f"{error}{LOGIN_HINT}") from None
        if isinstance(error.__cause__, NotPidleaseError):
            raise cannot_run(str(error)) from None
        raise kafka_unreachable(str(options["bootstrap_servers"]), error) from None
    return producer


def _failed(error: Exception, *, resumable: bool) -> typer.Exit:
    """Print why not all lines are in the log; return the exit to raise."""
    if isinstance(error, PlanError | LeaseRefusedError):
        return cannot_run(f"nothing was sent: {error}")
    if isinstance(error, FencedError):
        stderr().print(f"pidlease: fenced: {error}", style="red", markup=False)
        return typer.Exit(FENCED)
    again = resumable and not isinstance(error, _InvalidLineError)
    return refused(f"not finished: {error}{'; run the same command again' if again else ''}")


class _Run:
    """Sends the lines, and counts the results."""

    def __init__(
        self,
        producer: BlockingProducer,
        topic: str,
        form: _Format,
        *,
        bytes_max: int,
        skip_invalid: bool,
    ) -> None:
        self._bytes_max: Final = bytes_max
        self._producer: Final = producer
        self._topic: Final = topic
        self._form: Final = form
        self._plan: ResumePlan | None = None
        self._skip_invalid: Final = skip_invalid
        self._unacknowledged: Final[deque[Future[Sent]]] = deque()
        self.stored = 0
        self.duplicates = 0
        self.skipped = 0

    def resume(self, path: Path, fixed: Mapping[str, Any]) -> None:
        """Number the lines, so that those of earlier runs are not stored again.

        Raises:
            PlanError: with these options, lines would be lost or stored twice.
            ProducerError: there is no such topic, or no lease.
            OSError: the plan cannot be read or stored.
        """
        count = len(self._producer.partitions_for(self._topic))
        self._plan = ResumePlan(path, fixed, count)
        self._plan.begin(self._producer, self._topic)

    def send_all(self, lines: BinaryIO, report: Report) -> None:
        """Send every line, and wait for every result.

        Raises:
            ProducerError: a line was not stored.
            _InvalidLineError: a line is no record; those before it are in the log.
        """
        size = 0
        invalid: _InvalidLineError | None = None
        for number, line in enumerate(lines, 1):
            size += len(line)
            try:
                self._send(number, line.removesuffix(b"\n"))
            except ValueError as error:
                problem = f"line {number}: {error}"
                if not self._skip_invalid:
                    invalid = _InvalidLineError(problem)
                    break
                self.skipped += 1
                stderr().print(f"pidlease: skipped {problem}", markup=False)
            self._take_results(_UNACKNOWLEDGED_MAX)
            report(size, self.stored + self.duplicates)
        self._producer.flush()
        self._take_results(0)
        if invalid is not None:
            raise invalid

    def report(self) -> None:
        """Print the counts, with the results since the last look: the producer was stopped."""
        for each in self._unacknowledged:
            if each.exception() is None:
                self._count(each.result())
        parts = [f"{self.stored:,} records stored"]
        if self.duplicates:
            parts.append(f"{self.duplicates:,} were in the log before")
        if self.skipped:
            parts.append(f"{self.skipped:,} lines skipped")
        stderr().print(", ".join(parts), markup=False)

    def _send(self, number: int, line: bytes) -> None:
        record = self._form.record(line)
        headers = self._form.headers + record.header_pairs
        # Before the number is looked up: a line that an earlier run skipped is not in the log.
        check_record(record.value, record.key, headers, record.timestamp_ms, None, self._bytes_max)
        partition = self._form.partition if record.partition is None else record.partition
        if self._plan is not None and partition is None:
            # The same partition in each run: the client would choose any for a line without a key.
            count = self._plan.partitions
            key = record.key
            partition = number % count if key is None else partition_for_key(key, count)
        if self._plan is not None and partition is not None:
            last = self._plan.last
            if partition < len(last) and number <= last[partition]:
                # By the same comparison, the server would find that it is a duplicate.
                self._plan.stored(partition)
                self.duplicates += 1
                return
        self._unacknowledged.append(
            self._producer.send(
                self._topic,
                record.value,
                key=record.key,
                partition=partition,
                headers=headers,
                timestamp_ms=record.timestamp_ms,
                sequence_id=None if self._plan is None else number,
            )
        )

    def _count(self, sent: Sent) -> None:
        self.duplicates += sent.duplicate
        self.stored += not sent.duplicate

    def _take_results(self, most: int) -> None:
        """Count the results that are there; wait until at most `most` are missing."""
        waiting = self._unacknowledged
        while waiting and (len(waiting) > most or waiting[0].done()):
            sent = waiting.popleft().result()
            self._count(sent)
            if self._plan is not None:
                self._plan.stored(sent.partition)


def _format(
    as_json: bool,  # noqa: FBT001 - the option
    separator: str | None,
    headers: list[str] | None,
    partition: int | None,
) -> _Format:
    """Return how lines are read; end the command if the options do not fit."""
    if as_json and separator is not None:
        raise cannot_run("--json has keys already; leave out --key-separator")
    if separator == "":
        raise cannot_run("--key-separator is empty")
    pairs: list[tuple[str, bytes | None]] = []
    for each in headers or ():
        key, equals, value = each.partition("=")
        if not key or not equals:
            raise cannot_run(f"--header {each}: give NAME=VALUE")
        pairs.append((key, value.encode()))
    return _Format(as_json, None if separator is None else separator.encode(), pairs, partition)


def _check_http(url: str, security: CommandSecurity) -> None:
    """End the command if no server responds: leases would be tried for minutes."""
    try:
        ask(url, "/healthz", security=security)
    except (UnreachableError, ServerRefusedError) as error:
        raise cannot_run(str(error)) from None
