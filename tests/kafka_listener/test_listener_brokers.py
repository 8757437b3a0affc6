"""Which brokers and leaders clients of a listener see, where active servers have different ones."""

from pidlease.kafka.codec.metadata import NO_LISTENER
from proxy.kafka.brokers import Brokers
from proxy.kafka.listener_config import AdvertisedListener, ClusterConfig
from tests.unit.engine.shared_memory import Coordinator
from tests.unit.engine.test_shared_cluster import all_read, servers

_NAMED = (("IN", "in", 1), ("EX", "ex", 2))
_CONFIG = ClusterConfig(
    "id", "in", 1, listeners=tuple(AdvertisedListener(*each) for each in _NAMED)
)


async def test_a_server_without_a_listener_of_that_name_is_left_out() -> None:
    shared = Coordinator()
    async with servers(shared, 1, 2) as found:
        one, two = (each.cluster for each in found)
        brokers, without = Brokers(_CONFIG, one), Brokers(ClusterConfig("id", "old", 9), two)
        shared.members[1] = shared.members[1]._replace(
            kafka_host="in", kafka_port=1, listeners=_NAMED
        )
        await all_read(found)
        old = shared.members[2]
        assert [tuple(each) for each in brokers.all("IN")] == [
            (1, "in", 1), (2, old.kafka_host, old.kafka_port),
        ]  # fmt: skip
        assert [tuple(each) for each in brokers.all("EX")] == [(1, "ex", 2)]
        assert set(brokers.leaders("IN", "t", 99) or ()) == {1, 2}
        assert set(brokers.leaders("EX", "t", 99) or ()) == {1, NO_LISTENER}
        assert set(without.leaders("", "t", 99) or ()) == {1, 2}
        assert [(each.node_id, each.host) for each in without.all("")] == [
            (1, "in"), (2, old.kafka_host),
        ]  # fmt: skip

        shared.members[2] = old._replace(listeners=(("EX", "ex2", 3), ("IN", "in2", 4)))
        await all_read(found)
        assert [tuple(each) for each in brokers.all("EX")] == [(1, "ex", 2), (2, "ex2", 3)]
        assert [tuple(each) for each in brokers.all("IN")] == [(1, "in", 1), (2, "in2", 4)]
        assert set(brokers.leaders("EX", "t", 99) or ()) == {1, 2}


def test_one_server_has_all_its_listeners() -> None:
    brokers = Brokers(_CONFIG)
    assert [tuple(each) for each in brokers.all("EX")] == [(1, "ex", 2)]
    assert (brokers.own("IN").host, brokers.leaders("EX", "t", 1)) == ("in", None)
