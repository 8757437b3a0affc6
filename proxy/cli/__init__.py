"""The commands beside `serve`: produce, consume, topics, status, verify, repair and others."""
