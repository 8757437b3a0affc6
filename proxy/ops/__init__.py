"""The HTTP port for operators: health, readiness, metrics and status."""
