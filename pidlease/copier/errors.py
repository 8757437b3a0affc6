"""The errors that end a copy. Each text says what to do.

CopyError
CheckpointError
CopierFencedError
"""


class CopyError(Exception):
    """The copy cannot continue without an operator. No record is lost or doubled."""


class CheckpointError(CopyError):
    """A checkpoint in the group's offsets is not a copier's, is damaged, or does not fit."""


class CopierFencedError(CopyError):
    """Another copier has taken over the same work. Final for this one."""
