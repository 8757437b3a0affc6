"""Logins and rights on the HTTP listener; by default, every request is allowed."""
