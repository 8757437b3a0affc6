"""What people deploy: the package, the image, the chart and the units of systemd."""
