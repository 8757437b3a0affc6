"""The PID sequence file, line by line."""

from pathlib import Path

from pidlease.coordination.file.file_sequence import parse_line
from pidlease.coordination.pid_sequence import ZOOKEEPER_MARK
from pidlease.core.pid import number_of
from pidlease.core.producer_names import is_stand_in
from pidlease.storage.checked_lines import split_torn
from pidlease.storage.files import read_file
from pidlease.verify.partition_check import Looking
from pidlease.verify.verify_report import Kind, Report


def check_sequence(looking: Looking, path: Path) -> None:
    """Look at every line, and whether the sequence is above every PID that was seen.

    Parameters:
        looking: what all the checks share; the PIDs have been seen.
        path: the file.

    Raises:
        OSError: the file cannot be read.
    """
    report = looking.report
    leased = (number_of(pid) for pid in report.pids if not is_stand_in(pid))
    largest = max(leased, default=0)
    elsewhere = looking.files.exists(path.with_name(ZOOKEEPER_MARK))
    if elsewhere:
        report.note(path, "PIDs come from ZooKeeper now, which is not looked at")
    if not looking.files.exists(path):
        if (report.clean or largest) and not elsewhere:
            report.wrong(Kind.MISSING, path, "there is no PID sequence")
        return
    lines, torn = split_torn(read_file(looking.files, path))
    end = _check_lines(report, path, lines)
    if torn and report.clean:
        report.wrong(Kind.SEQUENCE, path, f"{len(torn)} bytes after the last whole line",
                     position=len(lines) + 1)  # fmt: skip
    elif torn:
        report.note(
            path, f"torn last line of {len(torn)} bytes; the next start leaves its numbers out"
        )
    if largest >= end and not elsewhere:
        text = f"the sequence goes up to {end - 1}; a PID with number {largest} was seen"
        report.wrong(Kind.SEQUENCE, path, text, position=len(lines))


def _check_lines(report: Report, path: Path, lines: list[bytes]) -> int:
    """The first number after all whole lines."""
    end = 1
    for number, line in enumerate(lines, 1):
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
