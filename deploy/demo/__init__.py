"""`make demo`: real rows, unmodified clients, a server that is killed, and a full count at the end.

The server does not import the demo and does not know of it: it is a child process, and the
clients are released ones.

Starting, killing and reading back servers is code that the tests have, too. The demo imports it
from `tests.servers`, `tests.crash` and `tests.copier`; there is no second harness. It stays in
`tests` because most of its users are there, and neither the tests nor the demo are in the wheel.
`make demo` installs requirements/demo.txt only, so no module that the demo imports may import
pytest: tests/integration/test_demo_imports.py checks it.
"""


class DemoError(Exception):
    """The demo cannot go on; the message says why."""
