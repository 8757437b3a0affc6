"""Verification of a whole data directory, offline and without changing it."""
