"""The copier: against real clusters, with everything killed; its parts alone."""
