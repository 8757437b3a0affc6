"""`pidlease repair`: show damaged partitions of a data directory, and cut the given ones."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final

import structlog
import typer
from rich.console import Console
from rich.text import Text

from pidlease.log.segments.data_directory import lock_folder
from pidlease.repair.cut import cut as cut_partition
from pidlease.repair.repair_report import describe
from pidlease.repair.survey import DamagedPartition, Survey, survey
from pidlease.storage.errors import DataFolderError
from pidlease.storage.files import RealFiles
from pidlease.storage.snapshots import TopicPartition
from pidlease.verify.read_only_files import keep_servers_out
from pidlease.verify.verify_report import UnusableDirectoryError
from proxy.cli.console import WRONG, cannot_run, print_json, stdout

#: The most producers and groups shown of a partition; --json lists more.
_SHOWN: Final = 20
_ADVICE: Final = (
    "Nothing was changed. A backup of the partition's folder, if there is one, loses less than a"
    " cut. To cut: --cut TOPIC/PARTITION"
)


def repair(
    data_dir: Annotated[
        Path, typer.Option(envvar="PIDLEASE_DATA_DIR", help="The directory; no server may use it.")
    ],
    *,
    cut: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TOPIC/PARTITION",
            help="Cut this partition where its damage begins; may be repeated.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Show damaged partitions and what a cut would lose; cut the given ones.

    Without --cut, nothing changes. Each --cut names one partition; there is no confirmation. The bytes that are cut off are kept in the folder `repair` of the directory, with the report as `report.json`. A torn tail is no damage: it was never acknowledged, and the next start cuts it off.

    --json prints one object: `data_dir`, `clean_stop`, `partitions` (the number that was checked), and `damaged`. For each damaged partition this has `topic`, `partition`, `file`, `position` (byte), `offset` (of the cut), `reason`, `can_be_cut`, `why_not`, `acknowledged_to`, `offsets_lost`, `intact_after`, `producers`, `groups_beyond`, `snapshots_beyond` and `kept` (the folder with the bytes that were cut off).

    Exit codes:
    0: no damage is left
    1: damage was found
    2: it could not be done
    """  # noqa: E501 - a paragraph is one line in the help
    path = data_dir.absolute()
    wanted = [_partition(each) for each in cut or ()]
    kept: dict[str, str] = {}
    try:
        with _logs_to_stderr(), _locked(path, exclusive=bool(wanted)):
            found = survey(RealFiles(), path, _now_ms(), wanted)
            if not wanted and not as_json:
                _show(stdout(), found)
            for each in found.damaged if wanted else ():
                if not as_json:
                    _show_partition(stdout(), each)
                # Survey again: an earlier cut has changed the snapshots.
                kept[str(each.name)] = str(_cut(path, each.name))
    except (UnusableDirectoryError, DataFolderError) as error:
        raise cannot_run(str(error)) from None
    except OSError as error:
        raise cannot_run(f"{path}: {error}; nothing is lost, run it again") from None
    if as_json:
        print_json(describe(found, kept))
    elif wanted:
        _show_cuts(stdout(), found, wanted, kept)
    if found.damaged and not wanted:
        raise typer.Exit(WRONG)


def _cut(path: Path, name: TopicPartition) -> Path:
    files, now_ms = RealFiles(), _now_ms()
    found = survey(files, path, now_ms, [name])
    (damaged,) = found.damaged
    return cut_partition(files, found, damaged, now_ms)


def _partition(text: str) -> TopicPartition:
    topic, slash, number = text.rpartition("/")
    if not slash or not topic or not number.isascii() or not number.isdecimal():
        raise cannot_run(f"--cut {text}: give TOPIC/PARTITION, for example orders/0")
    return TopicPartition(topic, int(number))


@contextmanager
def _locked(path: Path, *, exclusive: bool) -> Iterator[None]:
    """Keep servers out; for a cut (exclusive), also other readers."""
    files = RealFiles()
    if not exclusive:
        with keep_servers_out(files, path):
            yield
        return
    if not files.exists(path / "meta.json"):
        raise UnusableDirectoryError(f"{path} is no data directory of pidlease")
    lock = lock_folder(files, path)
    try:
        yield
    finally:
        lock.release()


@contextmanager
def _logs_to_stderr() -> Iterator[None]:
    """Keep the storage's log lines out of the report."""
    before = structlog.get_config()
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    try:
        yield
    finally:
        structlog.configure(**before)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


# ---------------------------------------------------------------------- output


def _show(console: Console, found: Survey) -> None:
    for each in found.damaged:
        _show_partition(console, each)
    _line(console, f"{found.looked_at:,} partitions, {len(found.damaged):,} damaged")
    if any(each.losses is not None for each in found.damaged):
        _line(console, _ADVICE)


def _show_partition(console: Console, each: DamagedPartition) -> None:
    damage, losses = each.damage, each.losses
    name = f"{each.topic.name}/{each.number}"
    _line(console, f"{name} is damaged at offset {damage.offset}: {damage.path}, byte"
                   f" {damage.position}: {damage.reason}", "red")  # fmt: skip
    if losses is None:
        _line(console, f"  it cannot be cut: {each.reason}")
        return
    lost = losses.promised_end - damage.offset
    _line(console, f"  a cut loses at least offsets {damage.offset} to {losses.promised_end - 1}"
                   f" ({lost:,})")  # fmt: skip
    readable = losses.readable
    if readable.batches:
        _line(console, f"  intact after the damage: {readable.records:,} records in"
                       f" {readable.batches:,} batches, offsets {readable.first_offset} to"
                       f" {readable.end_offset - 1}; a cut takes them out of the log and keeps the"
                       " bytes aside")  # fmt: skip
    for loss in losses.producers[:_SHOWN]:
        producer = f"PID {loss.pid}" + (f" ({loss.name})" if loss.name else "")
        after = "nothing" if loss.kept is None else f"sequence {loss.kept.high}"
        _line(console, f"  {producer}: had reached sequence {loss.high} of generation"
                       f" {loss.generation}, falls back to {after};"
                       f" {loss.records:,} intact records after the damage")  # fmt: skip
    _more(console, len(losses.producers), "producers")
    for group in each.groups[:_SHOWN]:
        _line(console, f"  group {group.group} has committed offset {group.offset}, beyond the cut:"
                       " set it back, or it skips what is written there next")  # fmt: skip
    _more(console, len(each.groups), "groups")


def _more(console: Console, count: int, what: str) -> None:
    if count > _SHOWN:
        _line(console, f"  and {count - _SHOWN:,} more {what}; --json lists them")


def _show_cuts(
    console: Console, found: Survey, wanted: list[TopicPartition], kept: dict[str, Any]
) -> None:
    damaged = {each.name: each for each in found.damaged}
    for name in dict.fromkeys(wanted):
        if name not in damaged:
            _line(console, f"{name.topic}/{name.partition} is not damaged: nothing to cut")
            continue
        end = damaged[name].damage.offset
        _line(console, f"{name.topic}/{name.partition} now ends at offset {end}; what was cut is in"
                       f" {kept[str(name)]}")  # fmt: skip


def _line(console: Console, text: str, style: str = "") -> None:
    console.print(Text(text, style=style), soft_wrap=True)
