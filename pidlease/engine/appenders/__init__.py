"""The appenders append admitted batches to a log, and handle failed appends."""
