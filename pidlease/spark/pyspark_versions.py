"""What versions of PySpark before 4.2 lack, so that the rest of the package need not ask."""

from typing import TYPE_CHECKING, Final

import pyspark
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter

#: Major and minor version.
VERSION: Final = tuple(int(part) for part in pyspark.__version__.split(".")[:2])
#: Since this version Spark limits a micro-batch of a Python source.
READ_LIMITS: Final = (4, 2)
_STREAM_ARROW: Final = (4, 1)

if TYPE_CHECKING or VERSION >= _STREAM_ARROW:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
else:

    class DataSourceStreamArrowWriter(DataSourceArrowWriter, DataSourceStreamWriter):
        """A writer of micro-batches that gets Arrow batches.

        PySpark 4.0 asks only whether a writer is a DataSourceArrowWriter, also of a stream.
        """


__all__ = ["READ_LIMITS", "VERSION", "DataSourceStreamArrowWriter"]
