"""The message for clients about a change of users, ACLs or quotas that has failed."""

from typing import Final

from pidlease.coordination.common_files import CommonFileTooLongError
from pidlease.storage.files import LockedError
from proxy.security.entry_file import EntryFileError

NOT_STORED: Final = "the change may have been stored or not; the server's log says why"
_NOTHING: Final = "nothing was changed; the server's log says why"


def reason_of(error: Exception) -> str:
    """Return the message for a change that raised an error."""
    definite = isinstance(error, EntryFileError | CommonFileTooLongError | LockedError)
    return _NOTHING if definite else NOT_STORED
