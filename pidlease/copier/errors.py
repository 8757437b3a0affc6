"""Why a copy ends before it is done. Each text says what to do."""


class CopyError(Exception):
    """The copy cannot go on: somebody has to look at it. Nothing is lost, and nothing doubled."""


class CheckpointError(CopyError):
    """What is saved with the group's offsets is not a copier's, is damaged, or does not fit."""


class CopierFencedError(CopyError):
    """Another copier goes on with the same work. Final for this one."""
