"""The topics' settings in a journal: a row for each topic, and one for those of all topics."""

from collections.abc import Sequence
from typing import Final

from typing_extensions import override

from pidlease.coordination.journal.journal import Journal, JournalError, Row
from pidlease.coordination.topic_book import TopicBook, TopicBookError, TopicSettings

_KIND: Final = "topic"
#: Used instead of a topic's id for the settings of all topics.
_SHARED: Final = ""


class JournalTopicBook(TopicBook):
    """The topics' settings in a journal."""

    def __init__(self, journal: Journal) -> None:
        self._journal: Final = journal

    @override
    def load(self) -> TopicSettings:
        try:
            rows = self._journal.all(_KIND)
        except JournalError as error:
            raise TopicBookError(str(error)) from error
        own = {topic_id: dict(fields["settings"]) for topic_id, fields in rows.items()}
        return TopicSettings(own.pop(_SHARED, {}), own)

    def adopt(self, settings: TopicSettings) -> None:
        """Put the settings of another book, all of them or none.

        Raises:
            TopicBookError: they may have been put or not.
        """
        every = {**settings.own, _SHARED: settings.shared}
        self._put([
            Row(_KIND, topic_id, {"topic": "", "settings": each})
            for topic_id, each in every.items() if each
        ])  # fmt: skip

    @override
    def save_shared(self, settings: dict[str, str]) -> None:
        self.save_own("", _SHARED, settings)

    @override
    def save_own(self, topic: str, topic_id: str, settings: dict[str, str]) -> None:
        fields = {"topic": topic, "settings": settings} if settings else None
        self._put([Row(_KIND, topic_id, fields)])

    def _put(self, rows: Sequence[Row]) -> None:
        try:
            self._journal.put(rows)
        except JournalError as error:
            raise TopicBookError(str(error)) from error
