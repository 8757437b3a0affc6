"""What the sink does in the application: before a query starts, and between its micro-batches."""
