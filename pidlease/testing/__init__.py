"""A pytest plugin: a real server, on free ports in a temporary folder, which a test may kill.

In the `conftest.py` of the tests' root folder:

    pytest_plugins = ["pidlease.testing"]

It is no entry point: tests that do not name it never import it. PYTEST_DONT_REWRITE
"""

from pidlease.extras import SERVER_MODULES, need_extra
from pidlease.testing.killable_server import PidleaseServer
from pidlease.testing.server_process import ServerError

__all__ = ["PidleaseServer", "ServerError", "pidlease_server", "pidlease_settings"]

need_extra("server", "pidlease.testing", SERVER_MODULES)

try:
    from pidlease.testing.fixtures import pidlease_server, pidlease_settings
except ModuleNotFoundError as error:
    # A program without pytest may run the server, too, as the demo does.
    if error.name != "pytest":
        raise
