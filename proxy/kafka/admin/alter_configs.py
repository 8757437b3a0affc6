"""IncrementalAlterConfigs (44, KIP-339), and AlterConfigs (33), which replaces all settings.

The errors are those of Kafka (ConfigAdminManager, ConfigurationControlManager). Resource BROKER
without a name means all brokers (KIP-226): here, the values set for all topics at run time.
"""

import asyncio
import enum
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

from kio.schema.errors import ErrorCode

from pidlease.engine.engine import Engine, UnknownTopicError
from pidlease.kafka.codec.metadata import NODE_ID
from pidlease.kafka.codec.time_slices import TimeSlices, counted
from pidlease.storage.errors import LogError
from pidlease.storage.topics.stream_settings import DELETES, OF_FORKS
from pidlease.storage.topics.topic_settings import check_change, check_shared
from proxy.kafka.admin.admin_changes import AdminChanges, deadline_of
from proxy.kafka.admin.change_outcome import DONE, TIMED_OUT, Verdict, not_stored
from proxy.kafka.admin.config_entries import (
    Kind,
    Setting,
    UnfitSettingError,
    own_settings,
    shared_settings,
    unknown,
)
from proxy.kafka.admin.describe_configs import (
    BROKER,
    TOPIC,
    unknown_broker,
    unknown_resource,
    unknown_topic,
)
from proxy.kafka.admin.response_rows import Rows


@enum.unique
class Operation(enum.IntEnum):
    """Operations on a setting (org.apache.kafka.clients.admin.AlterConfigOp.OpType)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class _Current(NamedTuple):
    """The input of a change of settings, beside the resource's own values.

    Attributes:
        resource: the request's.
        settings: all settings of such a resource, by name.
        shared: the values set for all topics, which apply where the resource has no own value.
    """

    resource: Any
    settings: Mapping[str, Setting]
    shared: Mapping[str, str]


#: Makes a resource's new own values from its old ones.
_Change = Callable[[_Current, dict[str, str]], dict[str, str]]


class AlteringApi:
    """Changes the settings of topics.

    Parameters:
        settings: the settings of a topic, by name.
        check_settings: raises ValueError for invalid topic settings.
    """

    def __init__(
        self,
        engine: Engine,
        settings: Mapping[str, Setting],
        check_settings: Callable[[dict[str, str]], None],
        changes: AdminChanges,
    ) -> None:
        self._engine = engine
        self._settings = settings
        self._shared_settings = shared_settings()
        self._check_settings = check_settings
        self._changes = changes

    async def alter_some(self, request: Any, rows: Rows) -> None:
        """Answer IncrementalAlterConfigs: settings that are not named keep their values."""
        await self._answer(request, rows, _some_changed)

    async def alter_all(self, request: Any, rows: Rows) -> None:
        """Answer AlterConfigs: settings that are not named are unset."""
        await self._answer(request, rows, _all_replaced)

    async def _answer(self, request: Any, rows: Rows, change: _Change) -> None:
        deadline = deadline_of()
        times = await counted(
            (each.resource_type, each.resource_name) for each in request.resources
        )
        turns = TimeSlices()
        for resource in request.resources:
            verdict = await _check(resource, turns)
            if times[resource.resource_type, resource.resource_name] > 1:
                verdict = Verdict(ErrorCode.invalid_request, "the resource is named twice")
            if verdict is DONE:
                alter = self._alter_topic if resource.resource_type == TOPIC else self._alter_shared
                work = partial(alter, resource, change, validate_only=request.validate_only)
                verdict = await self._changes.run(work, deadline, TIMED_OUT)
            await rows.add(
                "AlterConfigsResourceResponse",
                error_code=verdict.code,
                error_message=verdict.message,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )

    async def _alter_topic(self, resource: Any, change: _Change, *, validate_only: bool) -> Verdict:
        name, engine = resource.resource_name, self._engine

        def changed(own: dict[str, str]) -> dict[str, str]:
            current = _Current(resource, self._settings, engine.all_topics_settings)
            new = change(current, own)
            check_change(own, new, also=DELETES)
            self._check_settings(new)
            return new

        try:
            if not validate_only:
                await engine.change_topic(name, changed)
            elif name not in engine.topics:
                return unknown_topic(name)
            else:
                changed(dict(engine.topics[name].overrides))
        except _InvalidRequestError as error:
            return Verdict(ErrorCode.invalid_request, str(error))
        except (UnfitSettingError, ValueError) as error:
            return Verdict(ErrorCode.invalid_config, str(error))
        except UnknownTopicError:
            return unknown_topic(name)
        except (LogError, OSError) as error:
            return not_stored(error)
        return DONE

    async def _alter_shared(
        self, resource: Any, change: _Change, *, validate_only: bool
    ) -> Verdict:
        def changed(shared: dict[str, str]) -> dict[str, str]:
            new = change(_Current(resource, self._shared_settings, {}), shared)
            check_shared(new)
            return new

        try:
            for config in resource.configs:
                if config.name not in self._shared_settings:
                    return _at_start_only(config.name, self._shared_settings)
            if validate_only:
                changed(dict(self._engine.all_topics_settings))
            else:
                await self._engine.change_all_topics(changed)
        except (_InvalidRequestError, UnfitSettingError, ValueError) as error:
            # Unlike for topics, not INVALID_CONFIG (KAFKA-13609).
            return Verdict(ErrorCode.invalid_request, str(error))
        except OSError as error:
            return not_stored(error)
        return DONE


# ---------------------------------------------------------------------- new settings


def _some_changed(current: _Current, own: dict[str, str]) -> dict[str, str]:
    changed = dict(own)
    for config in current.resource.configs:
        name, value, operation = config.name, config.value, config.config_operation
        setting = current.settings.get(name)
        if setting is None:
            raise UnfitSettingError(unknown(name, current.settings))
        if operation == Operation.SET:
            changed |= own_settings([(name, value)], current.settings)
        elif operation == Operation.DELETE:
            changed.pop(name, None)
        elif operation in (Operation.APPEND, Operation.SUBTRACT):
            before = own.get(name, current.shared.get(name, setting.value))
            value = _list_changed(setting, before, Operation(operation), value)
            changed |= own_settings([(name, value)], current.settings)
        else:
            raise _InvalidRequestError(f"operation {operation} on {name}")
    return changed


def _list_changed(setting: Setting, before: str, operation: Operation, value: str) -> str:
    """Add names to a list, or remove some.

    `before` is the topic's own value, or else the one in effect for it. Kafka would then start from
    the setting's default (ConfigurationControlManager.getParts), and so could allow a topic what is
    forbidden for all topics.
    """
    if setting.kind is not Kind.LIST or not setting.writable:
        raise UnfitSettingError(
            f"{operation.name} to {setting.name}: it is not a list that a topic can change"
        )
    names = before.split(",")
    given = [name.strip() for name in value.split(",")]
    if operation is Operation.APPEND:
        return ",".join((*names, *given))
    return ",".join(name for name in names if name not in given)


def _all_replaced(current: _Current, own: dict[str, str]) -> dict[str, str]:
    given = [(each.name, each.value) for each in current.resource.configs]
    kept = {name: own[name] for name in (*OF_FORKS, *DELETES) if name in own}
    return kept | own_settings(given, current.settings)


# ---------------------------------------------------------------------- errors


class _InvalidRequestError(Exception):
    """An unknown operation."""


async def _check(resource: Any, turns: TimeSlices) -> Verdict:
    """Check a request's resource, whatever its present settings are."""
    kind, name = resource.resource_type, resource.resource_name
    if kind == BROKER and name:
        return _ONE_BROKER if name == str(NODE_ID) else unknown_broker(name)
    if kind not in (TOPIC, BROKER):
        return unknown_resource(kind)
    names = set()
    for config in resource.configs:
        if config.name in names:
            return Verdict(ErrorCode.invalid_request, "a setting is named twice")
        names.add(config.name)
        operation = getattr(config, "config_operation", Operation.SET)
        if config.value is None and operation != Operation.DELETE:
            return Verdict(ErrorCode.invalid_request, f"{config.name[:100]} has no value")
        if turns.due():
            await asyncio.sleep(0)
    return DONE


def _at_start_only(name: str, settings: Mapping[str, Setting]) -> Verdict:
    """Return the error for a setting that cannot be set for all topics while the server runs."""
    text = f"{name[:100]} cannot be changed while the server runs; {', '.join(settings)} can"
    return Verdict(ErrorCode.invalid_request, f"{text}; the rest {_AT_START}")


_AT_START: Final = "is given at its start (pidlease serve --help)"
_ONE_BROKER: Final = Verdict(
    ErrorCode.invalid_request,
    f"settings that can be changed while the server runs are set for all brokers, without a name"
    f" (--entity-default); the rest {_AT_START}",
)
