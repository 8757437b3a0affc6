"""How admitted batches get into a log, and what is done when one does not."""
