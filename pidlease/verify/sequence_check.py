"""Checks the file of the PID sequence."""

from pathlib import Path

from pidlease.coordination.file.file_sequence import parse_line
from pidlease.coordination.pid_sequence import KAFKA_MARK, ZOOKEEPER_MARK
from pidlease.core.pid import number_of
from pidlease.core.producer_names import is_stand_in
from pidlease.storage.checked_lines import split_torn
from pidlease.storage.files import read_file
from pidlease.verify.partition_check import CheckContext, header_end
from pidlease.verify.verify_report import Kind, Report


def check_sequence(context: CheckContext, path: Path) -> None:
    """Check every line, and that the sequence is above every PID found.

    Parameters:
        context: the checks' context; logs and snapshots were checked before.

    Raises:
        OSError: the file cannot be read.
    """
    report = context.report
    leased = (number_of(pid) for pid in report.pids if not is_stand_in(pid))
    largest = max(leased, default=0)
    elsewhere = False
    for mark, coordinator in ((ZOOKEEPER_MARK, "ZooKeeper"), (KAFKA_MARK, "Kafka")):
        if context.files.exists(path.with_name(mark)):
            elsewhere = True
            report.note(path, f"PIDs come from {coordinator} now, which is not verified")
    if not context.files.exists(path):
        if (report.clean or largest) and not elsewhere:
            report.wrong(Kind.MISSING, path, "there is no PID sequence")
        return
    content = read_file(context.files, path)
    begin = header_end(context, path, content, Kind.SEQUENCE)
    if begin is None:
        return
    lines, torn = split_torn(content[begin:])
    end = _check_lines(report, path, lines)
    if torn and report.clean:
        report.wrong(Kind.SEQUENCE, path, f"{len(torn)} bytes after the last whole line",
                     position=len(lines) + 2)  # fmt: skip
    elif torn:
        report.note(
            path, f"torn last line of {len(torn)} bytes; the next start leaves its numbers out"
        )
    if largest >= end and not elsewhere:
        text = f"the sequence goes up to {end - 1}; a PID with number {largest} was seen"
        report.wrong(Kind.SEQUENCE, path, text, position=len(lines) + 1)


def _check_lines(report: Report, path: Path, lines: list[bytes]) -> int:
    """Return the number after the last intact line."""
    end = 1
    for number, line in enumerate(lines, 2):
        try:
            block = parse_line(line)
        except (ValueError, KeyError, TypeError):
            block = None
        if block is None:
            report.wrong(Kind.SEQUENCE, path, "is damaged", position=number)
        elif block.first < end or block.count < 1:
            text = f"has numbers from {block.first} on, and {end} should follow"
            report.wrong(Kind.SEQUENCE, path, text, position=number)
        else:
            end = block.end
    return end
