"""What may change while a server runs: its settings are read again at SIGHUP."""

from collections.abc import Callable
from typing import Final, NamedTuple

import structlog

from pidlease.engine.engine import Engine
from proxy.configs import door_config, engine_config
from proxy.kafka.door import KafkaDoor
from proxy.logs import set_level
from proxy.settings import Settings, SettingsError

#: Settings that take effect at once; all others at the next start.
RELOADED: Final = frozenset((
    "log_level", "snapshot_batches", "snapshot_seconds", "flush_seconds",
    "retention_check_seconds", "connections_max", "idle_seconds", "stop_delay_seconds",
    "stop_seconds",
))  # fmt: skip

_log = structlog.get_logger(__name__)


class Changed(NamedTuple):
    """Settings that are others than before.

    Attributes:
        now: those that take effect now,
        later: and those that wait for a restart.
    """

    now: list[str]
    later: list[str]


def changed(before: Settings, after: Settings) -> Changed:
    """What is different."""
    names = [
        name for name in Settings.model_fields if getattr(before, name) != getattr(after, name)
    ]
    return Changed([n for n in names if n in RELOADED], [n for n in names if n not in RELOADED])


def read_again(before: Settings, load: Callable[[], Settings]) -> Settings:
    """The settings as they are now; those before, where they make no sense. Blocks.

    Parameters:
        before: what holds so far.
        load: reads them.
    """
    try:
        after = load()
    except SettingsError as error:
        _log.error("the settings make no sense; those before go on", error=str(error))
        return before
    now, later = changed(before, after)
    _log.info("settings read again", changed=now)
    if later:
        _log.warning("these settings take effect at the next start", settings=later)
    return before.model_copy(update={name: getattr(after, name) for name in now})


def apply(settings: Settings, engine: Engine | None, door: KafkaDoor | None) -> None:
    """Let what may change take effect."""
    set_level(settings.log_level)
    if engine is not None:
        engine.keeper.reconfigure(engine_config(settings).keeper)
    if door is not None:
        door.reconfigure(door_config(settings, ""))
