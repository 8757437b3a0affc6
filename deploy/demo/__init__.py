"""`make demo`: real rows, unmodified clients, a server that is killed, and a full count at the end.

The server is a child process, and the clients are released versions: neither imports the demo.

The demo imports the code that starts, kills and reads back servers from `tests.servers`,
`tests.crash` and `tests.copier`: most users of that code are tests, and neither the tests nor the
demo are in the wheel. `make demo` installs requirements/demo.txt only, so no module that the demo
imports may import pytest: tests/integration/test_demo_imports.py checks it.
"""


class DemoError(Exception):
    """The demo cannot continue; the message says why."""
