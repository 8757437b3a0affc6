"""A mutation check: the code is broken in one place at a time, and a test must turn red.

`python -m tests.mutants` runs all of it; `python -m tests.mutants NAME...` some.
"""
