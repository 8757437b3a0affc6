"""Grafana's dashboards, generated from Python so that all of them are alike, and kept as JSON.

`python -m deploy.grafana` writes `dashboards/`; a test compares the files with the code.
"""
