"""The commands beside `serve`: status, topics, verify, repair, skip-pids, copy and spark."""
