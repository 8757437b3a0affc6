"""The demo, and Grafana's dashboards."""
