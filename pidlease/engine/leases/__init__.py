"""Leases, the blocks of PIDs that they come from, and their expiry."""
