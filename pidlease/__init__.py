"""pidlease: exactly-once ingestion by leased producer ids.

It validates, appends and remembers. `proxy` listens, and `pidlease` does not import it.
"""

__version__ = "0.1.0"
