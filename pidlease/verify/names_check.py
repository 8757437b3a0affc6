"""Checks the file of name bindings."""

from pathlib import Path

from pidlease.coordination.file.file_names import parse_line
from pidlease.coordination.name_bindings import check_name
from pidlease.core.pid import Policy, policy_of
from pidlease.storage.checked_lines import split_torn
from pidlease.storage.files import read_file
from pidlease.verify.partition_check import CheckContext, header_end
from pidlease.verify.verify_report import Kind

#: Policies with PIDs that are bound to names.
_BOUND = (Policy.STRICT, Policy.MONOTONIC)


def check_names(context: CheckContext, path: Path) -> None:
    """Check every line.

    Parameters:
        path: the file; versions without names did not have it.

    Raises:
        OSError: the file cannot be read.
    """
    if not context.files.exists(path):
        return
    content = read_file(context.files, path)
    begin = header_end(context, path, content, Kind.SEQUENCE)
    if begin is None:
        return
    lines, torn = split_torn(content[begin:])
    for number, line in enumerate(lines, 2):
        problem = _read(line)
        if problem is None:
            context.report.wrong(Kind.SEQUENCE, path, "is damaged", position=number)
        elif problem:
            context.report.wrong(Kind.SEQUENCE, path, problem, position=number)
    if torn and context.report.clean:
        context.report.wrong(Kind.SEQUENCE, path, f"{len(torn)} bytes after the last whole line",
                             position=len(lines) + 2)  # fmt: skip
    elif torn:
        context.report.note(path, f"torn last line of {len(torn)} bytes, never acknowledged; the"
                                  " next start ignores it")  # fmt: skip


def _read(line: bytes) -> str | None:
    """Return what is wrong with a line; empty: nothing; None: it is damaged."""
    try:
        changes = parse_line(line)
        if changes is None:
            return None
        for name in changes:
            check_name(name)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return f"is no binding: {error}"
    for name, binding in changes.items():
        if binding is not None and policy_of(binding.pid) not in _BOUND:
            return f"binds {name!r} to PID {binding.pid}, which no name can have"
    return ""
