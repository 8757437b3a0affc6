"""The server and its commands: listeners translate requests, and `pidlease` decides about them."""

from pidlease.extras import SERVER_MODULES, need_extra

need_extra("server", "the server of pidlease, with its commands,", SERVER_MODULES)
