"""The package: sdist and wheel, their bill of materials, and the locked requirements of the image."""
