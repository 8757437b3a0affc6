"""The mark of tests for the soak only: `make test` has four minutes for Spark."""

import pytest

from tests.crash.seeds import SOAK

in_the_soak = pytest.mark.skipif(not SOAK, reason="in the soak: make soak")
