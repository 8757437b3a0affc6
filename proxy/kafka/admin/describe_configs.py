"""DescribeConfigs (32): the settings of topics and of the server, and their sources."""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from kio.schema.errors import ErrorCode

from pidlease.engine.engine import Engine
from pidlease.kafka.codec.messages import Response
from pidlease.kafka.codec.metadata import NODE_ID
from pidlease.kafka.codec.primitives import INT16, write_array, write_string
from pidlease.storage.topics.stream_settings import STREAM_SETTINGS
from pidlease.storage.topics.topic_store import illegal_name
from proxy.kafka.admin.change_outcome import DONE, Verdict
from proxy.kafka.admin.config_entries import Setting, Source, shared_settings, synonyms
from proxy.kafka.admin.response_rows import Rows

#: Resource types (org.apache.kafka.common.config.ConfigResource.Type).
TOPIC: Final = 2
BROKER: Final = 4
_FLEXIBLE_FROM: Final = 4
#: Encoded arrays of settings that are cached: most topics have the same settings.
_KEPT_MAX: Final = 128


class _Found(NamedTuple):
    """The settings of a resource, and their values by name.

    Attributes:
        own: the resource's own values.
        shared: the values set for all topics.
        shared_only: whether to return only the latter.
    """

    settings: Mapping[str, Setting]
    own: Mapping[str, str]
    shared: Mapping[str, str]
    shared_only: bool = False


_NOTHING: Final = _Found({}, {}, {})


class DescribingApi:
    """Handles DescribeConfigs."""

    def __init__(
        self,
        engine: Engine,
        topic_settings: Mapping[str, Setting],
        server_settings: Mapping[str, Setting],
    ) -> None:
        self._engine = engine
        self._topic_settings = topic_settings
        self._server_settings = server_settings
        self._shared_settings = shared_settings()
        self._kept: OrderedDict[tuple[object, ...], bytes] = OrderedDict()

    async def describe(self, request: Any, rows: Rows) -> None:
        """Answer DescribeConfigs."""
        for resource in request.resources:
            found, verdict = self._find(resource)
            if rows.full and verdict is DONE:
                found, verdict = _NOTHING, _TOO_MUCH
            configs = self._configs(request, resource, found, rows.response)
            row = _row(resource, verdict, configs, flexible=rows.version >= _FLEXIBLE_FROM)
            await rows.grow(len(row))
            rows.write(row)
            await rows.end_row()

    def _find(self, resource: Any) -> tuple[_Found, Verdict]:
        """Return a resource's settings, or the error for it."""
        kind, name = resource.resource_type, resource.resource_name
        shared = self._engine.all_topics_settings
        verdict = DONE
        if kind == TOPIC:
            topic = self._engine.topics.get(name)
            if topic is not None:
                return _Found(self._topic_settings, topic.overrides, shared), DONE
            verdict = unknown_topic(name)
        elif kind != BROKER:
            verdict = unknown_resource(kind)
        elif name == str(NODE_ID):
            return _Found(self._server_settings, {}, shared), DONE
        elif name:
            verdict = unknown_broker(name)
        else:
            # Only the values that were set for all brokers while they ran (ConfigHelper).
            return _Found(self._shared_settings, {}, shared, shared_only=True), DONE
        return _NOTHING, verdict

    def _configs(self, request: Any, resource: Any, found: _Found, response: Response) -> bytes:
        """Return the encoded array of a resource's settings."""
        wanted = resource.configuration_keys or None
        with_text = getattr(request, "include_documentation", False)
        values = (tuple(sorted(found.own.items())), tuple(sorted(found.shared.items())))
        # `found.settings` is one of four dicts, which live as long as `self`: its id is unique.
        key = (
            response.version, request.include_synonyms, with_text, id(found.settings), *values
        )  # fmt: skip
        if wanted is None and key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        names = set(found.shared if found.shared_only else found.settings)
        # These have no default: a topic that is no stream does not list them.
        names -= STREAM_SETTINGS.keys() - found.own.keys()
        if wanted is not None:
            names &= set(wanted)
        rows = [
            _config(response, each, found, request.include_synonyms, with_text)
            for each in found.settings.values()
            if each.name in names
        ]
        array = write_array(len(rows), flexible=response.version >= _FLEXIBLE_FROM)
        data = array + b"".join(rows)
        if wanted is None:
            self._kept[key] = data
            if len(self._kept) > _KEPT_MAX:
                self._kept.popitem(last=False)
        return data


def _config(
    response: Response,
    setting: Setting,
    of: _Found,
    with_synonyms: bool,  # noqa: FBT001 - as the request says
    with_text: bool,  # noqa: FBT001 - as the request says
) -> bytes:
    found = synonyms(setting, of.own.get(setting.name), of.shared.get(setting.name))
    if of.shared_only:
        found = [each for each in found if each.source is Source.ALL_BROKERS]
    sources = [
        response.part("DescribeConfigsSynonym", name=each.name, value=each.value,
                      source=each.source.value)
        for each in (found if with_synonyms else ())
    ]  # fmt: skip
    return response.row(
        "DescribeConfigsResourceResult",
        name=setting.name,
        value=found[0].value,
        read_only=not setting.writable,
        config_source=found[0].source.value,
        is_sensitive=False,
        synonyms=tuple(sources),
        config_type=setting.kind.value,
        documentation=setting.text if with_text else None,
    )


def _row(resource: Any, verdict: Verdict, configs: bytes, *, flexible: bool) -> bytes:
    return b"".join(
        (
            INT16.pack(verdict.code.value),
            write_string(verdict.message, flexible=flexible),
            resource.resource_type.to_bytes(1, "big", signed=True),
            write_string(resource.resource_name, flexible=flexible),
            configs,
            b"\0" if flexible else b"",
        )
    )


# ---------------------------------------------------------------------- errors


def unknown_topic(name: str) -> Verdict:
    """Return the error for a topic that does not exist."""
    reason = illegal_name(name)
    if reason:
        return Verdict(ErrorCode.invalid_topic_exception, reason)
    return Verdict(ErrorCode.unknown_topic_or_partition, "there is no topic of that name")


def unknown_broker(name: str) -> Verdict:
    """Return the error for another broker than the only one."""
    reason = f"the only broker is {NODE_ID}, not {name[:20]!r}"
    return Verdict(ErrorCode.invalid_request, reason)


def unknown_resource(kind: int) -> Verdict:
    """Return the error for a resource type without settings."""
    reason = (
        f"resource type {kind} has no settings here; topics ({TOPIC}) and the broker ({BROKER})"
    )
    return Verdict(ErrorCode.invalid_request, f"{reason} have")


_TOO_MUCH: Final = Verdict(
    ErrorCode.invalid_request, "the response is too large; request fewer resources at once"
)
