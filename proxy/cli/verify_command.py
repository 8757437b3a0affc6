"""`pidlease verify`: check a whole data directory offline."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from pidlease.storage.files import RealFiles
from pidlease.verify.read_only_files import keep_servers_out
from pidlease.verify.verification import verify as verify_directory
from pidlease.verify.verify_report import Finding, Report, UnusableDirectoryError
from proxy.cli.console import WRONG, cannot_run, pairs_table, print_json, stderr, stdout

_NO_LOCK: Final = "there is no lock file (a copy?): nothing keeps a server from starting meanwhile"


def verify(
    data_dir: Annotated[
        Path, typer.Option(envvar="PIDLEASE_DATA_DIR", help="The directory; no server may use it.")
    ],
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Check a whole data directory, and change nothing.

    Notes are harmless. After a stop that was not clean they are a torn tail, which was never acknowledged and which the next start cuts off, a torn last line of the PID sequence, and entries of the last segment's indexes, which the next start builds again. After a clean stop these are findings.

    If retention has removed the log's beginning, a producer's first batch may have any sequence number. The producer of a lease that has ended may be missing from a snapshot. After damage, the check continues at the next intact batch, without the earlier history. A directory that was written with `judging=off` is not sound. For topics with `pidlease.deduplication=off`, a note counts the batches that are repeated or out of order.

    A batch is checked by its header and its CRC. Of its records only the first is read, and only where it names the producer (policies strict, monotonic and epoch). So records that a broken client wrote wrongly, such as another number of records than the header says, are no finding; readers get an error there.

    Memory grows with the number of producers, not with the log. The report lists 10,000 findings, and counts all.

    --json prints one object: `data_dir`, `sound`, `clean_stop`, `totals`, `findings` (`kind`, `file`, `position`, `offset`, `message`; -1: none) and `notes` (`file`, `message`). The kinds are `damaged`, `unreadable`, `missing`, `stray`, `hole`, `repeated`, `duplicate`, `gap`, `overlap`, `fencing`, `malformed`, `index`, `snapshot` and `sequence`.

    Exit codes:
    0: sound
    1: something is wrong
    2: it could not be checked
    """  # noqa: E501 - a paragraph is one line in the help
    path = data_dir.absolute()
    try:
        with keep_servers_out(RealFiles(), path) as locked:
            report = _with_progress(path)
    except UnusableDirectoryError as error:
        raise cannot_run(str(error)) from None
    except OSError as error:
        raise cannot_run(f"{path} cannot be read: {error}") from None
    except KeyboardInterrupt:
        raise cannot_run(f"{path} was not checked to the end") from None
    if not locked:
        report.note(path / "lock", _NO_LOCK)
    if as_json:
        print_json(_as_json(report))
    else:
        _show(stdout(), report)
    if not report.sound:
        raise typer.Exit(WRONG)


def _with_progress(path: Path) -> Report:
    columns = (
        TextColumn("reading"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TimeRemainingColumn(),
    )
    console = stderr()
    shown = console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=not shown) as progress:
        bar = progress.add_task("reading", total=None)
        return verify_directory(
            RealFiles(),
            path,
            lambda total: progress.update(bar, total=total),
            lambda read: progress.advance(bar, read),
        )


def _as_json(report: Report) -> dict[str, Any]:
    return {
        "data_dir": str(report.root),
        "sound": report.sound,
        "clean_stop": report.clean,
        "totals": asdict(report.totals),
        "findings": [
            {**finding._asdict(), "kind": finding.kind.value} for finding in report.findings
        ],
        "notes": [note._asdict() for note in report.notes],
    }


def _show(console: Console, report: Report) -> None:
    for note in report.notes:
        console.print(Text(f"note: {note.file}: {note.message}", style="yellow"), soft_wrap=True)
    for finding in report.findings:
        console.print(Text(_line(finding), style="red"), soft_wrap=True)
    totals = report.totals
    if totals.findings > len(report.findings):
        console.print(f"and {totals.findings - len(report.findings):,} more findings")
    table = pairs_table(str(report.root))
    table.add_row("last stop", "clean" if report.clean else "not clean")
    for name in ("partitions", "segments", "batches", "records", "bytes", "producers", "snapshots"):
        table.add_row(name, f"{getattr(totals, name):,}")
    if totals.torn_bytes:
        table.add_row("torn tail", f"{totals.torn_bytes:,} bytes")
    style = "red" if totals.findings else "green"
    table.add_row("findings", Text(f"{totals.findings:,}", style=style))
    console.print(table)


def _line(finding: Finding) -> str:
    """Format a finding on one line: kind, file, position, offset and message."""
    where = finding.file
    if finding.position >= 0:
        # The PID sequence is a text file, the only one with positions in lines.
        unit = "line" if finding.kind.value == "sequence" else "byte"
        where += f", {unit} {finding.position}"
    if finding.offset >= 0:
        where += f", offset {finding.offset}"
    return f"{finding.kind.value}: {where}: {finding.message}"
