"""Reads the settings again at SIGHUP, and applies those that may change while a server runs."""

from collections.abc import Callable
from typing import Final

import structlog

from pidlease.engine.engine import Engine
from proxy.configuration.component_configs import engine_config, listener_config
from proxy.configuration.settings import Settings, SettingsError
from proxy.http.connection_limit import ConnectionLimit
from proxy.kafka.kafka_listener import KafkaListener
from proxy.log_output import set_level

#: Settings that take effect at once; all others at the next start.
RELOADED: Final = frozenset((
    "log_level", "snapshot_batches", "snapshot_seconds", "flush_seconds",
    "retention_check_seconds", "connections_max", "idle_seconds", "stop_delay_seconds",
    "stop_seconds",
))  # fmt: skip

_log = structlog.get_logger(__name__)


def read_again(before: Settings, load: Callable[[], Settings]) -> Settings:
    """Read the settings again; return the settings in force from now on. Blocks.

    If the new ones are invalid, these are the previous ones.
    """
    try:
        after = load()
    except SettingsError as error:
        _log.error("the settings are invalid; the previous ones stay in force", error=str(error))
        return before
    fields = Settings.model_fields
    changed = [name for name in fields if getattr(before, name) != getattr(after, name)]
    now = [name for name in changed if name in RELOADED]
    _log.info("settings read again", changed=now)
    if later := [name for name in changed if name not in RELOADED]:
        _log.warning("these settings take effect at the next start", settings=later)
    return before.model_copy(update={name: getattr(after, name) for name in now})


def apply(
    settings: Settings,
    engine: Engine | None,
    listener: KafkaListener | None,
    http_connections: ConnectionLimit,
) -> None:
    """Apply the settings that may change."""
    set_level(settings.log_level)
    if engine is not None:
        engine.maintenance.reconfigure(engine_config(settings).maintenance)
    if listener is not None:
        listener.reconfigure(listener_config(settings, ""))
    http_connections.connections_max = settings.connections_max
