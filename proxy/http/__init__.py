"""The HTTP door: leases, and what is known of producers."""
