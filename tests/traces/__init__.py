"""The calls that a request makes, on record: a change that adds any shows as a diff."""
