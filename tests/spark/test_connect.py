"""Spark Connect is refused before anything is asked of its server."""

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import SparkSession

from pidlease.spark import SparkPieceError, copy, exactly_once, exactly_once_table, register
from pidlease.spark.spark_session import session


class _OfConnect:
    """As PySpark's class of this name in `pyspark.sql.connect`: every access would be a request."""

    def __getattr__(self, name: str) -> object:
        raise AssertionError(f"{name} was used")


_OfConnect.__module__ = "pyspark.sql.connect.session"
_REFUSED = "Spark Connect is not supported"


def test_sessions_and_queries_of_connect() -> None:
    connect = _OfConnect()
    with pytest.raises(SparkPieceError, match=_REFUSED):
        register(connect)  # type: ignore[arg-type]
    with pytest.raises(SparkPieceError, match=_REFUSED):
        copy(connect, {}, {})  # type: ignore[arg-type]
    for prepare in (exactly_once, exactly_once_table):
        with pytest.raises(SparkPieceError, match=_REFUSED):
            prepare(connect, {})  # type: ignore[arg-type]
    assert not SparkSession.__module__.startswith("pyspark.sql.connect.")


@pytest.mark.parametrize(
    ("master", "config", "variables"),
    [
        ("sc://host", {}, {}),
        (None, {"spark.remote": "sc://host"}, {}),
        (None, {"spark.api.mode": "connect"}, {}),
        (None, {}, {"SPARK_REMOTE": "sc://host"}),
        (None, {}, {"SPARK_CONNECT_MODE_ENABLED": "1"}),
    ],
)
def test_no_session_of_connect_is_made(
    master: str | None, config: dict[str, str], variables: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SparkPieceError, match=_REFUSED):
        session("tests", master=master, config=config)
