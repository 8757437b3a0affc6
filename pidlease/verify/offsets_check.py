"""Checks the journal of committed offsets."""

from pathlib import Path

from pidlease.storage.checked_lines import header_of
from pidlease.storage.offsets.journal_lines import JournalLine, journal_lines
from pidlease.storage.offsets.offset_journal import JOURNAL_NAME
from pidlease.verify.partition_check import CheckContext, header_end
from pidlease.verify.verify_report import Kind


def check_offsets(context: CheckContext, folder: Path) -> None:
    """Check every line; bad lines are damage, or a crash tore the last write.

    Raises:
        OSError: the file cannot be read.
    """
    report, path = context.report, folder / JOURNAL_NAME
    for name in context.files.list(folder):
        if name != JOURNAL_NAME:
            report.wrong(Kind.STRAY, folder / name, "is no journal of offsets")
    if not context.files.exists(path):
        return  # no group has committed an offset
    _check_lines(context, path)


def _check_lines(context: CheckContext, path: Path) -> None:
    report = context.report
    bad: list[JournalLine] = []
    synced = 0
    file = context.files.open_readonly(path)
    try:
        begin = header_end(context, path, file.read_at(len(header_of(path)), 0), Kind.DAMAGED)
        if begin is None:
            return
        for each in journal_lines(file, begin):
            if each.line is None:
                bad.append(each)
            elif bad:
                synced = max(synced, each.line.synced)
        size = file.size()
    except ValueError as error:
        report.wrong(Kind.DAMAGED, path, str(error), position=0)
        return
    finally:
        file.close()
    damaged = [each for each in bad if report.clean or each.start < synced]
    for each in damaged:
        report.wrong(Kind.DAMAGED, path, "is damaged", position=each.number)
    if bad and not damaged:
        torn = size - bad[0].start
        report.note(path, f"torn last write of {torn} bytes; the next start cuts it off")
