"""Listens and translates. What a batch means is decided in `pidlease`."""
