"""The server and its commands: listeners translate requests, and `pidlease` decides about them."""
