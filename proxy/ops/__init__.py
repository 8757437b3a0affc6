"""The operators' routes of the HTTP port: health, readiness, metrics and status."""
