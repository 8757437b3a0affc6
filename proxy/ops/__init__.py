"""The operator's door: health, readiness, metrics and status over HTTP."""
