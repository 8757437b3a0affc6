"""Logs and snapshots: the ports, the embedded log, the files beneath it."""
