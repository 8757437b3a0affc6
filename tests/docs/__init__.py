"""The documentation: its snippets run, its reference is the code, its site builds."""
