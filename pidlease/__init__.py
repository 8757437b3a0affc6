"""pidlease: exactly-once ingestion by leased producer ids.

The package decides and remembers; it knows nothing of who is listening (that is `proxy`).
"""

__version__ = "0.1.0"
