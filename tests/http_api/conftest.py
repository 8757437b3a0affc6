"""What the tests of requests past the framework share."""

from collections import Counter
from typing import Any

import fastapi.routing
import pytest


@pytest.fixture
def framework_calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often the framework has called each endpoint."""
    calls: Counter[str] = Counter()
    call = fastapi.routing.run_endpoint_function

    async def counted(**arguments: Any) -> Any:
        calls[arguments["dependant"].call.__name__] += 1
        return await call(**arguments)

    monkeypatch.setattr(fastapi.routing, "run_endpoint_function", counted)
    return calls
