"""Durable Streams over HTTP: a stream is a topic of one partition."""
