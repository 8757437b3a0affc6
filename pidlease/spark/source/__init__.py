"""The source: what Spark asks of `spark.read` and `spark.readStream`."""
