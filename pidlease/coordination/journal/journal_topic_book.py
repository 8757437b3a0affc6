"""The topics' settings in a journal: a row for each topic, and one for those of all topics."""

from typing import Final

from typing_extensions import override

from pidlease.coordination.journal.journal import (
    Journal,
    JournalConflictError,
    JournalError,
    Row,
    portions,
)
from pidlease.coordination.topic_book import (
    ALL_TOPICS,
    TopicBook,
    TopicBookError,
    TopicSettings,
)
from pidlease.storage.topics.topic_settings import SettingsChange

_KIND: Final = "topic"
#: How often settings are put while other servers change them.
_ATTEMPTS_MAX: Final = 20


class JournalTopicBook(TopicBook):
    """The topics' settings in a journal."""

    def __init__(self, journal: Journal) -> None:
        self._journal: Final = journal
        self._changes = 0
        journal.watch(_KIND, self._note_change)

    def _note_change(self) -> None:
        self._changes += 1

    @override
    def version(self) -> object:
        self._refresh()
        return self._changes

    @override
    def load(self) -> TopicSettings:
        self._refresh()
        rows = self._journal.all(_KIND)
        own = {topic_id: dict(fields["settings"]) for topic_id, fields in rows.items()}
        return TopicSettings(own.pop(ALL_TOPICS, {}), own)

    def adopt(self, settings: TopicSettings) -> None:
        """Put the settings of another book, if this one has none of its own yet.

        They may be too many for one put. The row for all topics comes last: without it, this was
        interrupted, and goes on with the rows that are missing.

        Raises:
            TopicBookError: they may have been put or not.
        """
        own = {topic_id: each for topic_id, each in settings.own.items() if each}
        every = {**own, ALL_TOPICS: settings.shared} if own or settings.shared else {}
        while True:
            self._refresh()
            there = self._journal.all(_KIND).keys()
            if ALL_TOPICS in there or there - own.keys():
                return
            rows = [
                Row(_KIND, topic_id, {"topic": "", "settings": each})
                for topic_id, each in every.items() if topic_id not in there
            ]  # fmt: skip
            try:
                for some in portions(rows):
                    self._journal.put(some, [row._replace(fields=None) for row in some])
            except JournalConflictError:
                continue
            except JournalError as error:
                raise TopicBookError(str(error)) from error
            return

    @override
    def change(self, topic: str, topic_id: str, change: SettingsChange) -> dict[str, str]:
        for _ in range(_ATTEMPTS_MAX):
            self._refresh()
            before = self._journal.get(_KIND, topic_id)
            settings = change({} if before is None else dict(before["settings"]))
            row = Row(_KIND, topic_id, {"topic": topic, "settings": settings} if settings else None)
            if row.fields == before:  # an earlier attempt may have put it
                return settings
            try:
                # On condition of what was read: a put that arrives late replaces nothing newer.
                self._journal.put([row], [row._replace(fields=before)])
            except JournalConflictError:
                continue
            except JournalError as error:
                raise TopicBookError(str(error)) from error
            return settings
        raise TopicBookError("other servers have always changed the settings meanwhile")

    def _refresh(self) -> None:
        try:
            self._journal.refresh()
        except JournalError as error:
            raise TopicBookError(str(error)) from error
