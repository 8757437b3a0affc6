"""Metrics, repeated log lines, and the lag of the event loop."""
