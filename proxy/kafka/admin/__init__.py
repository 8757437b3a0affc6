"""The admin APIs: topics, their settings and records, producers."""
