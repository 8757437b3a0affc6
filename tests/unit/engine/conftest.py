"""Fixtures of the engine's tests."""

import pytest

from pidlease.log.segments.data_directory import DataDirectory
from pidlease.log.segments.embedded_log import EmbeddedPartitionLog
from pidlease.log.segments.log_topics import folder_name, make_logs, read_copy
from pidlease.storage.topics.topic_store import Topic


@pytest.fixture(autouse=True)
def logs_of_topics_made_by_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A data directory that stands for Kafka's topics has the log of each topic that is found."""
    opened = DataDirectory.open_partition

    def open_partition(
        self: DataDirectory, topic: Topic, partition: int, recovery_offset: int
    ) -> EmbeddedPartitionLog:
        logs = self.path / "logs"
        folder = logs / folder_name(topic.name, partition)
        if not any(each.topic_id == topic.topic_id for each in self._topics.load()):
            copy = read_copy(self._files, folder) if self._files.exists(folder) else None
            if copy is None or copy.topic_id != topic.topic_id:
                make_logs(self._files, logs, topic, [partition])
        return opened(self, topic, partition, recovery_offset)

    monkeypatch.setattr(DataDirectory, "open_partition", open_partition)
