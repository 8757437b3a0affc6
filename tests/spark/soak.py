"""What the soak alone runs: `make test` has four minutes for Spark."""

import pytest

from tests.crash.seeds import SOAK

in_the_soak = pytest.mark.skipif(not SOAK, reason="in the soak: make soak")
