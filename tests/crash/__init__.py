"""Real servers that are killed, real clients that go on, and everything read back."""
