"""Record batches: headers, producers' identities, compression, and batches of writers."""
