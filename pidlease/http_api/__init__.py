"""The messages of the HTTP API, for the server and for clients."""
