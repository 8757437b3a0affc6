"""Logins and rights on the Kafka listener; nothing here runs with default settings."""
