"""Names of topics that are equal in Kafka's metrics: the second one is refused."""

import pytest

from pidlease.engine.topic_admin import EmbeddedTopicAdmin, InvalidTopicError
from pidlease.engine.topics.topic_table import TopicCollisionError, TopicExistsError
from pidlease.storage.topics.topic_store import Topic
from tests.sim.files import SimFiles
from tests.unit.engine.server import Server


async def test_a_name_that_differs_only_in_dots_and_underscores_is_refused() -> None:
    engine = (await Server(SimFiles()).start()).engine
    await engine.create_topic(Topic.new("a.b_c", 1))
    for name in ("a_b.c", "a.b.c", "a_b_c"):
        with pytest.raises(TopicCollisionError, match=rf"{name} collides with .* a\.b_c"):
            await engine.create_topic(Topic.new(name, 1))
    with pytest.raises(TopicExistsError):
        await engine.create_topic(Topic.new("a.b_c", 1))
    for name in ("a-b-c", "a.b_cc", "abc", "A.b_c"):
        await engine.create_topic(Topic.new(name, 1))
    await engine.delete_topic("a.b_c")
    await engine.create_topic(Topic.new("a_b.c", 1))


async def test_the_admin_says_that_the_name_is_invalid_and_creates_nothing_on_use() -> None:
    engine = (await Server(SimFiles()).start()).engine
    admin = EmbeddedTopicAdmin(engine, 1, auto_create=True)
    await admin.create("a.b", None, {})
    with pytest.raises(InvalidTopicError, match="collides") as error:
        await admin.create("a_b", None, {})
    assert error.value.field == "name"
    await admin.create_on_use("a_b")
    assert "a_b" not in engine.topics
