"""Judge, append, apply: what happens to a batch between a door and a log."""
