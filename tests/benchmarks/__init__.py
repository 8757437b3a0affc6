"""Speed, as ratios between alternatives that were measured by turns in one run.

`make bench`, or `python -m tests.benchmarks --only NAME --rounds N`; `--list` shows the names.
An absolute figure says more about the machine and its other users than about the code, so none of
them can fail a run; lost or doubled records can.
"""
