"""The package: sdist and wheel, their bill of materials, and the requirements of the image."""
