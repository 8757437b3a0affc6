"""Which coordinator a server has, by its settings."""

from typing import Any

import pytest

from proxy.configuration.settings import SettingsError, load_settings

_KAFKA: dict[str, Any] = {"log": "kafka", "upstream": "kafka1:9092"}
_ZOOKEEPER = {"zookeeper": "zk1:2181/p"}


@pytest.mark.parametrize(
    ("given", "in_kafka"),
    [
        ({}, False),
        ({"coordination": "files"}, False),
        (_ZOOKEEPER, False),
        (_KAFKA, True),
        ({**_KAFKA, "shared": True}, True),
        ({**_KAFKA, "coordination": "kafka"}, True),
        ({**_KAFKA, "coordination": "files"}, False),
        ({**_KAFKA, **_ZOOKEEPER}, False),
    ],
)
def test_kafka_where_it_is_the_log(given: dict[str, Any], in_kafka: bool) -> None:
    assert load_settings(None, given).coordinated_by_kafka is in_kafka


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"coordination": "kafka"}, "coordination: .*kafka needs log=kafka"),
        ({**_KAFKA, **_ZOOKEEPER, "coordination": "kafka"}, "kafka and zookeeper are two"),
        ({**_KAFKA, **_ZOOKEEPER, "coordination": "files"}, "files and zookeeper are two"),
        ({**_KAFKA, "coordination": "files", "shared": True}, "shared: .*not coordination=files"),
        ({**_ZOOKEEPER, "shared": True}, "shared: .*needs log=kafka"),
    ],
)
def test_settings_that_contradict(given: dict[str, Any], text: str) -> None:
    with pytest.raises(SettingsError, match=text):
        load_settings(None, given)
