"""The table of APIs, against kio's, which comes from Kafka's own schemas."""

from kio.index import load_request_schema
from kio.schema.index import api_key_map

from pidlease.kafka import api
from pidlease.kafka.client.settings import ServedVersions
from pidlease.kafka.codec.messages import api_name
from proxy.kafka.served_versions import SERVED_VERSIONS, forwarded_versions

_KEYS = {
    name.removeprefix("API_"): key for name, key in vars(api).items() if name.startswith("API_")
}
#: What a Kafka serves that serves everything.
_EVERYTHING = dict.fromkeys(range(100), (0, 99))


def test_the_keys_are_kafka_s() -> None:
    assert _KEYS
    assert all(api_key_map[key].upper() == name for name, key in _KEYS.items())


def test_names_are_written_as_kafka_writes_them() -> None:
    assert api_name(api.API_ADD_PARTITIONS_TO_TXN) == "AddPartitionsToTxn"
    assert api_name(-7) == "-7"


def test_each_version_that_is_sent_or_served_exists() -> None:
    for table in (api.SENT_VERSIONS, SERVED_VERSIONS, forwarded_versions(_EVERYTHING)):
        assert table.keys() <= set(_KEYS.values())
        for key, (lowest, highest) in table.items():
            for version in range(lowest, highest + 1):
                assert load_request_schema(key, version).__version__ == version


def test_the_versions_of_a_cluster_are_those_of_all_its_brokers() -> None:
    served = ServedVersions()
    first, second, third, bootstrap = (("kafka", port) for port in range(4))
    assert served.common([first]) == {}
    served.note(bootstrap, {1: (0, 9), 2: (0, 3)})
    assert served.common([first]) == {1: (0, 9), 2: (0, 3)}, "the only one that responded"
    served.note(first, {1: (0, 9), 2: (0, 3)})
    served.note(second, {1: (2, 11), 3: (0, 0)})
    assert served.common([first, second]) == {1: (2, 9)}
    assert served.common([first, second, third]) == {1: (2, 9)}, "the third is not known yet"
    assert served.common([second]) == {1: (2, 11), 3: (0, 0)}, "the first is gone"
    served.note(third, {1: (10, 12)})
    assert served.common([first, third]) == {}, "no version in common"


def test_a_broker_that_serves_other_versions_is_noticed() -> None:
    served = ServedVersions()
    changes = []
    served.on_change.append(lambda: changes.append(served.common([("kafka", 1)])))
    served.note(("kafka", 1), {1: (0, 9)})
    served.note(("kafka", 1), {1: (0, 9)})
    served.note(("kafka", 1), {1: (0, 7)})
    assert changes == [{1: (0, 9)}, {1: (0, 7)}]
