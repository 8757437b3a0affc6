"""Why a log is not read. Each text says what to do."""


class ReadError(Exception):
    """It cannot be read: the log is not there, is damaged, or does not answer."""
