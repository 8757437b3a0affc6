"""What the sink does in Spark's tasks: rows become numbered batches, and are sent."""
