"""Unpacks archives, with any Python from 3.11.0 on."""

import tarfile
from pathlib import Path


def unpack(archive: tarfile.TarFile, folder: Path) -> None:
    """Extract an archive of this repository into a folder."""
    # The filters came with Python 3.11.4; an argument would be an error before.
    archive.extraction_filter = getattr(tarfile, "data_filter", None)
    archive.extractall(folder)  # noqa: S202 - no archive of others
