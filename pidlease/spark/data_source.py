"""`format("pidlease")`: the data source that Spark asks for a reader or a writer.

Spark sends this class by name to its workers, so the package must be installed there.
"""

from pyspark import __version__
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType
from typing_extensions import override

from pidlease.spark.errors import OptionError
from pidlease.spark.pyspark_versions import READ_LIMITS, VERSION
from pidlease.spark.spark_options import FORMAT


class PidleaseDataSource(DataSource):
    """Makes the readers and writers; the options are theirs.

    The imports are inside the methods so that a worker that writes loads no reader.
    """

    @classmethod
    @override
    def name(cls) -> str:
        return FORMAT

    @override
    def schema(self) -> StructType:
        from pidlease.spark.source.settings import schema_of  # noqa: PLC0415

        return schema_of(self.options)

    @override
    def reader(self, schema: StructType) -> DataSourceReader:
        from pidlease.spark.source.batch_reader import LogReader  # noqa: PLC0415

        return LogReader(self.options, schema)

    @override
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        if VERSION < READ_LIMITS:
            raise OptionError(
                f"readStream.format('{FORMAT}') needs PySpark 4.2, and this is {__version__}: read"
                " by format('kafka'), or install PySpark 4.2"
            )
        from pidlease.spark.source.stream_reader import LogStreamReader  # noqa: PLC0415

        return LogStreamReader(self.options, schema)

    @override
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from pidlease.spark.sink.sink_writer import BatchSink  # noqa: PLC0415

        return BatchSink(self.options, schema, overwrite=overwrite)

    @override
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from pidlease.spark.sink.sink_writer import StreamSink  # noqa: PLC0415

        return StreamSink(self.options, schema)
