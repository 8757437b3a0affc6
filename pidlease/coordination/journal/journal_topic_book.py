"""The topics' settings in a journal: a row for each topic, and one for those of all topics."""

from collections.abc import Sequence
from typing import Final

from typing_extensions import override

from pidlease.coordination.journal.journal import (
    Journal,
    JournalConflictError,
    JournalError,
    Row,
)
from pidlease.coordination.topic_book import TopicBook, TopicBookError, TopicSettings

_KIND: Final = "topic"
#: Used instead of a topic's id for the settings of all topics.
_SHARED: Final = ""
#: How often settings are put while other servers change them.
_ATTEMPTS_MAX: Final = 20


class JournalTopicBook(TopicBook):
    """The topics' settings in a journal."""

    def __init__(self, journal: Journal) -> None:
        self._journal: Final = journal

    @override
    def load(self) -> TopicSettings:
        try:
            self._journal.refresh()
        except JournalError as error:
            raise TopicBookError(str(error)) from error
        rows = self._journal.all(_KIND)
        own = {topic_id: dict(fields["settings"]) for topic_id, fields in rows.items()}
        return TopicSettings(own.pop(_SHARED, {}), own)

    def adopt(self, settings: TopicSettings) -> None:
        """Put the settings of another book, all of them or none, if this one has none yet.

        Raises:
            TopicBookError: they may have been put or not.
        """
        if any(self.load()):
            return
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
        for _ in range(_ATTEMPTS_MAX):
            # On condition of what was read: a put that arrives late replaces nothing newer.
            before = [row._replace(fields=self._journal.get(row.kind, row.id)) for row in rows]
            try:
                self._journal.put(rows, before)
            except JournalConflictError:
                self.load()
                continue
            except JournalError as error:
                raise TopicBookError(str(error)) from error
            return
        raise TopicBookError("other servers have always changed the settings meanwhile")
