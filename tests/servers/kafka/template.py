"""Keeps results of one Kafka start for later ones: a formatted storage, and loaded classes.

Formatting runs a JVM of its own, and half of the processor time of a start goes into loading
classes. Both results are in build/, beside the jars.
"""

from __future__ import annotations

import base64
import shutil
import uuid
from pathlib import Path
from typing import Final

from tests.servers.java import ClassArchive

_CHECKPOINT: Final = "bootstrap.checkpoint"


class Template:
    """A folder with a formatted storage and an archive of loaded classes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.classes = ClassArchive(folder / "classes.jsa")

    def take_storage(self, data: Path) -> None:
        """Keep the files of a formatted storage that do not depend on the node."""
        shutil.copy(data / _CHECKPOINT, self.folder)

    def copy_storage(self, data: Path, node_id: int, cluster_id: str) -> None:
        """Write the formatted storage of a new node."""
        data.mkdir(parents=True, exist_ok=True)
        shutil.copy(self.folder / _CHECKPOINT, data)
        own = {"version": "1", "cluster.id": cluster_id, "node.id": str(node_id),
               "directory.id": new_id()}  # fmt: skip
        text = "".join(f"{name}={value}\n" for name, value in own.items())
        (data / "meta.properties").write_text(text)


def new_id() -> str:
    """Return an id for a new cluster or directory."""
    # A letter first: the tools would take an id that begins with "-" for an option.
    return "A" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode()[1:22]
