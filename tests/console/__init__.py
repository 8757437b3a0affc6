"""The console: the page for operators."""
