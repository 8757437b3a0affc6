"""Committed offsets of consumer groups: a journal, what it says, and who writes it."""
