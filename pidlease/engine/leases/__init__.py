"""Leases, the blocks that they come from, and when they end."""
