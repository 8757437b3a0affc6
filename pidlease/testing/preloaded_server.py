"""Imports the server, in the process that servers are forked from."""

import importlib
import sys
from pathlib import Path

# A `proxy` in the current folder is another program's.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
for _name in (
    "proxy.serve_command",
    "proxy.app",
    # What a server imports when it needs it: here, so that forked servers share it.
    "pidlease.storage.snapshot_files",
    "proxy.backends.kafka_backend",
):
    importlib.import_module(_name)
