"""Prometheus's configuration and alerts.

`python -m deploy.prometheus` writes the addresses of the runbooks into the alerts.
"""
