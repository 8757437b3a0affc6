"""IncrementalAlterConfigs (44, KIP-339), and AlterConfigs (33), which replaces them all.

What is wrong with a request is told as Kafka tells it (ConfigAdminManager,
ConfigurationControlManager).
"""

import asyncio
import enum
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from kio.schema.errors import ErrorCode

from pidlease.engine.engine import Engine, UnknownTopicError
from pidlease.storage.errors import LogError
from proxy.kafka.admin.describing import (
    BROKER,
    TOPIC,
    unknown_broker,
    unknown_resource,
    unknown_topic,
)
from proxy.kafka.admin.rows import Rows
from proxy.kafka.admin.settings import Setting, UnfitSettingError, own_settings, unknown
from proxy.kafka.admin.verdict import DONE, TIMED_OUT, Verdict
from proxy.kafka.admin.works import Works, deadline_of
from proxy.kafka.config import NODE_ID
from proxy.kafka.turns import Turns, counted

#: Makes a topic's new settings of its old ones.
_Change = Callable[[dict[str, str]], dict[str, str]]


@enum.unique
class Operation(enum.IntEnum):
    """What to do with a setting (org.apache.kafka.clients.admin.AlterConfigOp.OpType)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class AlteringApi:
    """Changes the settings of topics.

    Parameters:
        engine: where they are.
        settings: what a topic has, by name.
        check_settings: raises ValueError for topic settings that make no sense.
        works: where changes are done.
    """

    def __init__(
        self,
        engine: Engine,
        settings: Mapping[str, Setting],
        check_settings: Callable[[dict[str, str]], None],
        works: Works,
    ) -> None:
        self._engine = engine
        self._settings = settings
        self._check_settings = check_settings
        self._works = works

    async def alter_some(self, request: Any, rows: Rows) -> None:
        """Answer IncrementalAlterConfigs: what is not named stays as it is."""
        await self._answer(request, rows, self._some_changed)

    async def alter_all(self, request: Any, rows: Rows) -> None:
        """Answer AlterConfigs: what is not named is no longer set."""
        await self._answer(request, rows, self._all_replaced)

    async def _answer(
        self, request: Any, rows: Rows, change: Callable[[Any, dict[str, str]], dict[str, str]]
    ) -> None:
        deadline = deadline_of()
        times = await counted(
            (each.resource_type, each.resource_name) for each in request.resources
        )
        turns = Turns()
        for resource in request.resources:
            verdict = await _wrong(resource, turns)
            if times[resource.resource_type, resource.resource_name] > 1:
                verdict = Verdict(ErrorCode.invalid_request, "the resource is named twice")
            if verdict is DONE:
                work = partial(
                    self._alter, resource.resource_name, partial(change, resource),
                    validate_only=request.validate_only,
                )  # fmt: skip
                try:
                    verdict = await self._works.run(work, deadline)
                except TimeoutError:
                    verdict = TIMED_OUT
            await rows.add(
                "AlterConfigsResourceResponse",
                error_code=verdict.code,
                error_message=verdict.message,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )

    async def _alter(self, name: str, change: _Change, *, validate_only: bool) -> Verdict:
        topic = self._engine.topics.get(name)
        if topic is None:
            return unknown_topic(name)
        try:
            own = change(topic.overrides)
            self._check_settings(own)
            if own != topic.overrides and not validate_only:
                await self._engine.alter_topic(name, own)
        except _InvalidRequestError as error:
            return Verdict(ErrorCode.invalid_request, str(error))
        except (UnfitSettingError, ValueError) as error:
            return Verdict(ErrorCode.invalid_config, str(error))
        except UnknownTopicError:
            return unknown_topic(name)
        except (LogError, OSError) as error:
            return Verdict(ErrorCode.kafka_storage_error, str(error))
        return DONE

    def _some_changed(self, resource: Any, own: dict[str, str]) -> dict[str, str]:
        changed = dict(own)
        for config in resource.configs:
            name, value = config.name, config.value
            setting = self._settings.get(name)
            if setting is None:
                raise UnfitSettingError(unknown(name, self._settings))
            if config.config_operation == Operation.SET:
                changed |= own_settings([(name, value)], self._settings)
            elif config.config_operation == Operation.DELETE:
                changed.pop(name, None)
            elif config.config_operation in (Operation.APPEND, Operation.SUBTRACT):
                verb = Operation(config.config_operation).name
                raise UnfitSettingError(f"{verb} to {name}: it is not a list that can be changed")
            else:
                raise _InvalidRequestError(f"operation {config.config_operation} on {name}")
        return changed

    def _all_replaced(self, resource: Any, own: dict[str, str]) -> dict[str, str]:
        del own
        return own_settings([(each.name, each.value) for each in resource.configs], self._settings)


class _InvalidRequestError(Exception):
    """Something that no request can ask for."""


async def _wrong(resource: Any, turns: Turns) -> Verdict:
    """What is wrong with a resource, whatever its settings are now."""
    kind, name = resource.resource_type, resource.resource_name
    if kind == BROKER:
        return _SERVER_SETTINGS if name in ("", str(NODE_ID)) else unknown_broker(name)
    if kind != TOPIC:
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


_SERVER_SETTINGS: Final = Verdict(
    ErrorCode.invalid_request,
    "the server's settings are given at its start (pidlease serve --help) and stay as they are",
)
