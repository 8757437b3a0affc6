"""Loopback ports, as those of `pidlease.testing`."""

from pidlease.testing.loopback_ports import LOOPBACK, free_ports

__all__ = ["LOOPBACK", "free_ports"]
