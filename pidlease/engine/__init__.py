"""The engine: validates, appends and applies batches, between the listeners and the log."""
