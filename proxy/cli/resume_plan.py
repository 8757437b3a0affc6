"""What must not change between the runs of a named `pidlease produce`, kept in a file."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pidlease.client import BlockingProducer
from pidlease.storage.files import RealFiles, write_aside


class PlanError(Exception):
    """With the present options, lines would be lost or stored twice."""


class ResumePlan:
    """The options of the first run, and what it has stored.

    They decide a line's partition. With more partitions, keys would go to others, which do not
    know their sequence numbers.

    Parameters:
        path: the file; it is made by the first run.
        fixed: the options that must stay the same.
        partitions: the topic's present number of partitions.

    Attributes:
        partitions: the number of partitions to write to, from the first run.
        last: the number of the last line that earlier runs have stored in each partition; -1: none.

    Raises:
        PlanError: an option has changed, or the file is no plan.
        OSError: the file cannot be read.
    """

    def __init__(self, path: Path, fixed: Mapping[str, Any], partitions: int) -> None:
        self._path: Final = path
        self._new: Final = not path.exists()
        found: dict[str, Any] = {"fixed": dict(fixed), "partitions": partitions, "stored": []}
        if not self._new:
            found = _read(path)
            for name, value in fixed.items():
                before = found["fixed"].get(name)
                if before != value:
                    raise PlanError(
                        f"{name} was {before!r} in the first run, and is {value!r} ({path})"
                    )
        if partitions < found["partitions"]:
            raise PlanError(f"the topic had {found['partitions']} partitions, now {partitions}")
        self._fixed: Final = fixed
        self.partitions: Final[int] = found["partitions"]
        self._stored: Final = set(found["stored"])
        self.last: Final[list[int]] = []

    def begin(self, producer: BlockingProducer, topic: str) -> None:
        """Lease the partitions, and store the plan durably.

        Raises:
            PlanError: the server's state of the name is not that of this input.
            ProducerError: there is no lease.
        """
        for partition in range(self.partitions):
            producer.lease(topic, partition)
            last = producer.last_sequence_id(topic, partition)
            if self._new and last >= 0:
                raise PlanError(
                    "this --name has produced before, and its plan is not here"
                    f" ({self._path}): run the command in the folder of its first run, name the"
                    " plan with --plan, or take another --name for another input"
                )
            if partition in self._stored and last < 0:
                raise PlanError(
                    f"the server has forgotten what this --name stored in {topic}-{partition}: its"
                    " lease has ended, or the topic is a new one; to produce all lines once more,"
                    f" remove {self._path} and take another name"
                )
            self.last.append(last)
        self._save()

    def stored(self, partition: int) -> None:
        """Note that a partition has stored lines."""
        if partition not in self._stored:
            self._stored.add(partition)
            self._save()

    def _save(self) -> None:
        found = {
            "fixed": dict(self._fixed),
            "partitions": self.partitions,
            "stored": sorted(self._stored),
        }
        write_aside(RealFiles(), self._path, [json.dumps(found).encode()])


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except ValueError:
        found = None
    if not isinstance(found, dict) or {"fixed", "partitions", "stored"} - found.keys():
        raise PlanError(f"{path} is no plan of `pidlease produce`")
    return found
