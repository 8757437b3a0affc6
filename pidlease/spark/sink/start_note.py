"""What the application has seen at the start of a query, noted for the sink.

Spark creates the sink in processes of its own, which see neither the query's plan nor which start
of the query they work for. A listener in the application sees both, before the first micro-batch
(`pidlease.spark.query_starts`), and leaves a note in the application's local folder. The folder's
name is random and new for each application, and Spark's workers on the driver have it in their
environment. So a note lasts no longer than its application.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Self

from pidlease.spark.errors import SinkError

#: Names Spark's local folders, joined by commas, in the environment of its workers.
_FOLDERS: Final = "SPARK_LOCAL_DIRS"
_NOTES: Final = "pidlease-starts"
_NO_NOTE: Final = (
    "the sink does not know how this query was started. Call pidlease.spark.register(spark) once"
    " in the session before the query starts, instead of spark.dataSource.register; or start it as"
    " pidlease.spark.exactly_once(df, options).start()"
)


@dataclass(frozen=True, slots=True)
class StartNote:
    """One start of a query.

    Attributes:
        spark_run: Spark's id of this start: its run id.
        problem: why the query cannot be exact; empty: nothing is known against it.
        fenced: whether the problem is that another run has taken over.
        run: the name of the run that was begun for this start; empty: none yet.
    """

    spark_run: str
    problem: str = ""
    fenced: bool = False
    run: str = ""


class StartNotes:
    """The notes of an application.

    Parameters:
        folder: a local folder of the application.
    """

    def __init__(self, folder: Path) -> None:
        self._folder: Final = folder / _NOTES

    @classmethod
    def of_worker(cls, environment: Mapping[str, str]) -> Self:
        """Return the notes that a worker on the driver can read.

        Parameters:
            environment: the worker's environment variables.

        Raises:
            SinkError: Spark does not say where the application's local folder is.
        """
        folder = environment.get(_FOLDERS, "").split(",")[0]
        if not folder:
            raise SinkError(f"Spark does not set {_FOLDERS} in its workers: {_NO_NOTE}")
        return cls(Path(folder))

    def write(self, query: str, note: StartNote) -> None:
        """Replace the note of a query.

        Parameters:
            query: Spark's id of the query.

        Raises:
            OSError: it cannot be written.
        """
        self._folder.mkdir(exist_ok=True)
        path = self._path(query)
        aside = path.with_suffix(f".{os.getpid()}")
        aside.write_text(json.dumps(asdict(note)))
        aside.replace(path)

    def read(self, query: str) -> StartNote:
        """Return the note of a query.

        Raises:
            SinkError: there is none.
        """
        try:
            return StartNote(**json.loads(self._path(query).read_text()))
        except FileNotFoundError:
            raise SinkError(_NO_NOTE) from None
        except (OSError, ValueError, TypeError) as error:
            raise SinkError(f"{self._path(query)} cannot be read: {error}. {_NO_NOTE}") from None

    def _path(self, query: str) -> Path:
        return self._folder / f"{query}.json"
