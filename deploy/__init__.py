"""The demo, the dashboards and alerts, and what is deployed: package, image, chart and units."""
