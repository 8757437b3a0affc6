"""The journal of committed offsets, line by line."""

from pathlib import Path

from pidlease.storage.offsets.journal_lines import JournalLine, journal_lines
from pidlease.storage.offsets.offset_journal import JOURNAL_NAME
from pidlease.verify.partition_check import Looking
from pidlease.verify.verify_report import Kind


def check_offsets(looking: Looking, folder: Path) -> None:
    """Look at every line: what is not intact is damage, or what a crash left of the last write.

    Parameters:
        looking: what all the checks share.
        folder: of the journal.

    Raises:
        OSError: the file cannot be read.
    """
    report, path = looking.report, folder / JOURNAL_NAME
    for name in looking.files.list(folder):
        if name != JOURNAL_NAME:
            report.wrong(Kind.STRAY, folder / name, "is no journal of offsets")
    if not looking.files.exists(path):
        return  # no group ever committed anything
    bad: list[JournalLine] = []
    synced = 0
    file = looking.files.open_readonly(path)
    try:
        for each in journal_lines(file):
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
