"""The APIs for whoever runs the server: topics, their settings and records, producers."""
