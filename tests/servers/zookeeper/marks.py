"""The mark of tests that need ZooKeeper."""

import pytest

from tests.servers.zookeeper.server import unavailable_reason

_REASON = unavailable_reason()
needs_zookeeper = pytest.mark.skipif(_REASON is not None, reason=str(_REASON))
