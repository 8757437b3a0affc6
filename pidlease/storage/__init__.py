"""Files, snapshots, committed offsets and topics: everything on disk but the log."""
