"""Metrics, log lines that repeat, and how late the event loop is."""
