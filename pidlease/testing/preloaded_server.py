"""Imports the server, in the process that servers are forked from."""

import importlib
import sys
from pathlib import Path

# A `proxy` in the current folder is another program's.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
importlib.import_module("proxy.__main__")
importlib.import_module("proxy.app")
