"""Record batches: headers, identities, compression, and what writers put around them."""
