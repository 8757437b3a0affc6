"""`format("pidlease")`: what Spark asks for a reader or a writer.

Spark sends this class by name to its workers, so the package is installed wherever they run.
"""

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from pidlease.spark.spark_options import FORMAT


class PidleaseDataSource(DataSource):
    """See the module's text; the options are those of the parts that it makes.

    What a part needs is imported when it is made: a worker that writes loads no reader.
    """

    @classmethod
    def name(cls) -> str:
        """See `DataSource`."""
        return FORMAT

    def schema(self) -> StructType:
        """The columns of what is read."""
        from pidlease.spark.source.source_columns import schema_of  # noqa: PLC0415

        return schema_of(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Reads a log as it is."""
        from pidlease.spark.source.batch_reader import LogReader  # noqa: PLC0415

        return LogReader(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's
        """Reads a log on and on."""
        from pidlease.spark.source.stream_reader import LogStreamReader  # noqa: PLC0415

        return LogStreamReader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001
        """Writes rows once."""
        from pidlease.spark.sink.sink_writer import BatchSink  # noqa: PLC0415

        return BatchSink(self.options, schema, overwrite=overwrite)

    def streamWriter(  # noqa: N802 - Spark's
        self,
        schema: StructType,
        overwrite: bool,  # noqa: ARG002, FBT001 - Spark: a stream's output mode
    ) -> DataSourceStreamWriter:
        """Writes micro-batches."""
        from pidlease.spark.sink.sink_writer import StreamSink  # noqa: PLC0415

        return StreamSink(self.options, schema)
