"""The coordinator's interface for the small files that all servers of a cluster have in common.

Each server keeps a copy in its data directory, so it knows them while the coordinator is away.
"""

import zlib
from base64 import b64decode, b64encode
from typing import Final, Protocol

#: The longest text that a coordinator stores: ZooKeeper's nodes and Kafka's batches have 1 MiB.
_TEXT_MAX: Final = 900_000
#: The longest file.
_FILE_BYTES_MAX: Final = 32 << 20


class CommonFilesError(OSError):
    """A file cannot be read, or may have been replaced or not; try again."""


class CommonFileTooLongError(CommonFilesError):
    """A file is too long for a coordinator; nothing was replaced."""


class CommonFileConflictError(Exception):
    """Another server has replaced the file meanwhile; read it again."""


class CommonFiles(Protocol):
    """The files, by their names. The methods block, and run in threads."""

    def version(self, name: str) -> object:
        """Return a value that is another one after each change, a second later at most.

        Raises:
            CommonFilesError: it cannot be read.
        """

    def read(self, name: str) -> bytes | None:
        """Return a file as of this call, or later; None: there is none.

        Raises:
            CommonFilesError: it cannot be read.
        """

    def replace(self, name: str, content: bytes, expected: bytes | None) -> None:
        """Replace a file, durably.

        Parameters:
            expected: the file as it was read; None: there was none.

        Raises:
            CommonFileConflictError: it is not as expected, and was not replaced. Or an attempt of
                this call has replaced it, and its outcome was unknown.
            CommonFilesError: it may have been replaced or not.
        """


def encode_file(name: str, content: bytes) -> str:
    """Return a file as coordinators store it.

    Raises:
        CommonFileTooLongError: it is too long.
    """
    text = b64encode(zlib.compress(content)).decode()
    if len(content) > _FILE_BYTES_MAX or len(text) > _TEXT_MAX:
        raise CommonFileTooLongError(
            f"the {name} of all servers have {len(text)} characters as the coordinator keeps them;"
            f" at most {_TEXT_MAX} are possible"
        )
    return text


def decode_file(name: str, text: object) -> bytes:
    """Return a file that `encode_file` has encoded.

    Raises:
        CommonFilesError: it is none.
    """
    unpacked = zlib.decompressobj()
    try:
        content = unpacked.decompress(b64decode(str(text), validate=True), _FILE_BYTES_MAX)
    except (ValueError, zlib.error) as error:
        raise CommonFilesError(f"what the coordinator has as {name} is no file: {error}") from None
    if not unpacked.eof:
        raise CommonFilesError(f"what the coordinator has as {name} is torn, or too long")
    return content
