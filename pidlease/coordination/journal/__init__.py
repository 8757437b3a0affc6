"""The coordinator's parts in a journal: rows by key, each put durable before it returns."""
