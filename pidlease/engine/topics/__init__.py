"""The topics and what changes them."""
