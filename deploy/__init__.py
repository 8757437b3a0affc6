"""What is run around the server: the demo."""
