"""Committed offsets of consumer groups: a journal, its records, and its writer."""
