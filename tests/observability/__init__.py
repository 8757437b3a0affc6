"""Dashboards and alerts, held against a real Prometheus that scrapes real servers."""
