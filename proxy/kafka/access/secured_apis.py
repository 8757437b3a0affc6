"""Handles requests of clients that have the right to them, and refuses all others.

A request about several topics or groups is handled for those that the client has the right to; the
others get an error, as in Kafka.
"""

import asyncio
import dataclasses
from collections.abc import Callable, Coroutine, Iterable
from functools import cache, partial
from typing import Any, Final, cast

from kio.schema.errors import ErrorCode

from pidlease.engine.engine import Engine
from pidlease.engine.leases.lease_owners import USER
from pidlease.engine.topic_admin import TopicAdmin
from pidlease.kafka.api import (
    API_ALTER_CLIENT_QUOTAS,
    API_ALTER_USER_SCRAM_CREDENTIALS,
    API_CREATE_ACLS,
    API_DELETE_ACLS,
    API_DELETE_TOPICS,
    API_DESCRIBE_ACLS,
    API_DESCRIBE_CLIENT_QUOTAS,
    API_DESCRIBE_USER_SCRAM_CREDENTIALS,
    API_FETCH,
    API_INIT_PRODUCER_ID,
    API_METADATA,
    API_OFFSET_FETCH,
    API_SASL_AUTHENTICATE,
    API_SASL_HANDSHAKE,
)
from pidlease.kafka.codec.fetch import read_fetch_request
from pidlease.kafka.codec.messages import (
    Request,
    Response,
    read_request,
    read_request_slowly,
    write_request,
)
from pidlease.kafka.codec.metadata import BY_ID_FROM
from pidlease.kafka.codec.primitives import MalformedError, RequestHeader
from pidlease.kafka.codec.time_slices import TimeSlices, at_once
from proxy.kafka.access.acls_api import AclsApi
from proxy.kafka.access.audited_changes import AUDITED, changes
from proxy.kafka.access.metered_connection import MeteredSlot
from proxy.kafka.access.quotas_api import QuotasApi
from proxy.kafka.access.refused_responses import (
    element_class,
    refused_response,
    refused_rows,
    with_refused,
)
from proxy.kafka.access.request_rights import (
    RULES,
    TOPIC_REFUSED,
    Rule,
    create_rights,
)
from proxy.kafka.access.rewritten_slot import GuardedSlot, RewrittenSlot
from proxy.kafka.access.scram_users_api import ScramUsersApi
from proxy.kafka.access.secure_connection import SecureConnection
from proxy.kafka.client_connection import KafkaConnection, Slot
from proxy.kafka.cluster_api import ClusterApi
from proxy.kafka.embedded_apis import Apis
from proxy.kafka.listener_config import ClusterConfig
from proxy.kafka.metadata_cache import TopicIds
from proxy.kafka.produce_api import WriteGuard
from proxy.kafka.request_order import Answered
from proxy.kafka.served_versions import Versions, advertised
from proxy.security.acls import Operation, ResourceKind
from proxy.security.authorizer import Authorizer, Caller, Right
from proxy.security.security import Security, user_of

#: A larger request is decoded while other tasks run, and the connection's next requests wait.
_AT_ONCE_BYTES: Final = 4 << 10
#: Lists of topics that are kept, of clients that may not see all.
_LISTS_MAX: Final = 1000
#: Topics that are decided about before other tasks run.
_TOPICS_AT_ONCE: Final = 500
#: What a decision takes, in steps of `TimeSlices`.
_DECISION_STEPS: Final = 20
#: Whether the client has one of several rights; a refusal is audited once for a request.
_Permits = Callable[..., bool]
#: Makes another response of a response.
_Rewrite = Callable[[bytes], Coroutine[Any, Any, bytes]]
#: Version 0 cannot ask for no topic at all.
_METADATA_VERSION_MIN: Final = 1
_UNKNOWN_ID: Final = ErrorCode.unknown_topic_id
#: Later versions ask about several groups at once.
_OFFSET_FETCH_VERSION_MAX: Final = 7

_LOGIN_VERSIONS: Final[Versions] = {
    API_SASL_HANDSHAKE: (1, 1),
    API_SASL_AUTHENTICATE: (0, 2),
    API_DESCRIBE_USER_SCRAM_CREDENTIALS: (0, 0),
    API_ALTER_USER_SCRAM_CREDENTIALS: (0, 0),
}
_QUOTA_VERSIONS: Final[Versions] = {
    API_DESCRIBE_CLIENT_QUOTAS: (0, 1),
    API_ALTER_CLIENT_QUOTAS: (0, 1),
}
_ACL_VERSIONS: Final[Versions] = {
    API_DESCRIBE_ACLS: (1, 3),
    API_CREATE_ACLS: (1, 3),
    API_DELETE_ACLS: (1, 3),
}


def secured_versions(versions: Versions, *, login: bool, acls: bool) -> dict[int, tuple[int, int]]:
    """Return the served versions of a listener with logins or ACLs.

    Parameters:
        versions: those without.
    """
    found = {**versions, **_QUOTA_VERSIONS}
    if login:
        found |= _LOGIN_VERSIONS
    if acls:
        found |= _ACL_VERSIONS
        found[API_METADATA] = (
            max(_METADATA_VERSION_MIN, found[API_METADATA][0]),
            (found[API_METADATA][1]),
        )
        if API_OFFSET_FETCH in found:
            low, high = found[API_OFFSET_FETCH]
            found[API_OFFSET_FETCH] = low, min(high, _OFFSET_FETCH_VERSION_MAX)
    return found


class Guard:
    """Decides whether connections may write (implements `produce_api.WriteGuard`)."""

    def __init__(self, authorizer: Authorizer) -> None:
        self._authorizer: Final = authorizer

    @property
    def version(self) -> object:
        """Another object after each change of the ACLs."""
        return self._authorizer.version

    def may_write(self, connection: KafkaConnection, topic: str) -> bool:
        """Whether a client may write to a topic."""
        secured = cast(SecureConnection, connection)
        if secured.rights_version is self._authorizer.version and topic in secured.may_write_to:
            return True
        right = Right(Operation.WRITE, ResourceKind.TOPIC, topic)
        if not self._authorizer.permits(caller_of(connection), right):
            return False
        secured.renew_rights(self._authorizer.version)
        secured.note(secured.may_write_to, topic)
        return True

    def may_use(self, connection: KafkaConnection, transactional_id: str) -> bool:
        """Whether a client may write with a transactional id, or under a producer's name."""
        secured = cast(SecureConnection, connection)
        if secured.rights_version is self._authorizer.version and (
            transactional_id in secured.may_write_as
        ):
            return True
        right = Right(Operation.WRITE, ResourceKind.TRANSACTIONAL_ID, transactional_id)
        if not self._authorizer.permits(caller_of(connection), right):
            return False
        secured.renew_rights(self._authorizer.version)
        secured.note(secured.may_write_as, transactional_id)
        return True


def _acls_api(security: Security) -> AclsApi:
    if security.kafka_acls is None:
        return AclsApi(security)
    # Here, because other servers need no client of Kafka.
    from proxy.kafka.access.kafka_acls_api import KafkaAclsApi  # noqa: PLC0415

    return KafkaAclsApi(security, security.kafka_acls)


def caller_of(connection: KafkaConnection) -> Caller:
    """Return the client of a connection.

    Raises:
        MalformedError: it has not logged in.
    """
    caller = cast(SecureConnection, connection).caller
    if caller is None:
        raise MalformedError("a request without a login")
    return caller


class SecuredApis:
    """Puts rights in front of request handlers (implements `embedded_apis.Apis`).

    Parameters:
        inner: handles what is allowed.
        config: the address that clients get.
        security: what the listeners share.
    """

    def __init__(
        self, inner: Apis, engine: Engine, config: ClusterConfig, security: Security
    ) -> None:
        self._inner: Final = inner
        self._engine: Final = engine
        self._config: Final = config
        self._security: Final = security
        self._authorizer: Final = security.authorizer
        self._ids: Final = TopicIds(engine)
        #: Topics that clients may see, with the versions of ACLs and topics for which this holds.
        self._lists: dict[Caller, tuple[tuple[object, int], tuple[str, ...] | None]] = {}
        #: What the inner handlers serve, and what this listener serves for that.
        self._versions: tuple[Versions, Versions] = ({}, {})
        self.topics: TopicAdmin = inner.topics
        self._describing: Final = ClusterApi(config, lambda: advertised(self.versions))
        self.api_versions = self._describing.api_versions
        self.produce = inner.produce
        self.look = inner.look
        users, acl_api, quotas = ScramUsersApi(security), _acls_api(security), QuotasApi(security)
        self._own: Final = {
            API_DESCRIBE_USER_SCRAM_CREDENTIALS: users.describe,
            API_ALTER_USER_SCRAM_CREDENTIALS: users.alter,
            API_DESCRIBE_CLIENT_QUOTAS: quotas.describe,
            API_ALTER_CLIENT_QUOTAS: quotas.alter,
            API_DESCRIBE_ACLS: acl_api.describe,
            API_CREATE_ACLS: acl_api.create,
            API_DELETE_ACLS: acl_api.delete,
        }
        if self._authorizer is not None:
            inner.restrict_produce(Guard(self._authorizer))

    @property
    def versions(self) -> Versions:
        """The versions served now."""
        inner, served = self._versions
        if inner is not self._inner.versions:
            inner, config = self._inner.versions, self._security.config
            served = secured_versions(inner, login=config.kafka_login, acls=config.acls)
            self._versions = inner, served
        return served

    def start(self) -> None:
        """Start serving."""
        self._inner.start()

    async def close(self) -> None:
        """Stop serving."""
        await self._inner.close()

    def closed(self, connection: KafkaConnection) -> None:
        """Drop what belongs to a connection that has ended."""
        self._inner.closed(connection)

    def restrict_produce(self, guard: WriteGuard) -> None:
        """Accept only batches that a guard allows, from now on."""
        self._inner.restrict_produce(guard)

    # ------------------------------------------------------------------ decisions

    def answer(self, slot: Slot, header: RequestHeader, frame: bytearray) -> Answered:
        """Answer a request of a served version, or refuse it.

        Raises:
            MalformedError: the frame is not a valid request, or its API has no rule.
        """
        rule = RULES.get(header.api_key)
        if rule is None:
            raise MalformedError(f"API {header.api_key} has no rule of rights")
        if rule.anyone:
            return self._inner.answer(slot, header, frame)
        if header.api_key == API_FETCH and isinstance(slot, MeteredSlot):
            nothing = slot.bound_fetch(frame)
            if nothing is not None:
                return nothing
        if self._authorizer is None and header.api_key not in self._own:
            return self._answer_inner(slot, header, frame)
        if header.api_key == API_FETCH and self._may_fetch(slot, header, frame):
            version = cast(Authorizer, self._authorizer).version
            return self._fetch(version, slot, header, frame)
        if len(frame) <= _AT_ONCE_BYTES:
            return at_once(self._decide(slot, header, frame))
        cast(SecureConnection, slot.connection).hold()
        return self._decide_slowly(slot, header, frame)

    def _may_fetch(self, slot: Slot, header: RequestHeader, frame: bytearray) -> bool:
        authorizer, caller = cast(Authorizer, self._authorizer), caller_of(slot.connection)
        secured = cast(SecureConnection, slot.connection)
        secured.renew_rights(authorizer.version)
        request = read_fetch_request(frame, header.body, header.version)
        for topic, _ in request.topics:
            if topic not in secured.may_read_from:
                if not authorizer.allows(caller, Right(Operation.READ, ResourceKind.TOPIC, topic)):
                    return False
                secured.note(secured.may_read_from, topic)
        return True

    def _fetch(
        self, version: object, slot: Slot, header: RequestHeader, frame: bytearray
    ) -> Answered:
        """Let a Fetch be answered; it may wait long, and is decided again if the ACLs change.

        Parameters:
            version: of the ACLs when its decision began.
        """
        authorizer = cast(Authorizer, self._authorizer)

        def is_allowed() -> bool:
            return authorizer.version is version or self._may_fetch(slot, header, frame)

        inner = GuardedSlot(slot, is_allowed)
        answered = self._inner.answer(inner, header, frame)
        if isinstance(answered, bytes):
            return answered

        async def later() -> bytes | None:
            answer = await answered
            if not inner.revoked:
                return answer
            again = await self._decide(slot, header, frame)
            return again if isinstance(again, bytes) else await again

        return later()

    async def _decide_slowly(
        self, slot: Slot, header: RequestHeader, frame: bytearray
    ) -> bytes | None:
        try:
            answered = await self._decide(slot, header, frame)
        finally:
            cast(SecureConnection, slot.connection).release()
        return answered if isinstance(answered, bytes) else await answered

    async def _decide(
        self, slot: Slot, header: RequestHeader, frame: bytearray, *, looked: bool = False
    ) -> Answered:
        """Answer a request, or refuse it; if it is long, let other tasks run meanwhile.

        Parameters:
            looked: whether a topic that is not known by its id is known not to exist.
        """
        request = await read_request_slowly(header, frame)
        key = header.api_key
        rule = RULES[key]
        caller = caller_of(slot.connection)
        permits, turns = self._permits(caller), TimeSlices()
        for need in rule.needs(request):
            if not permits(*need.rights):
                return await refused_response(header, request, need.code)
            if turns.due(_DECISION_STEPS):
                await asyncio.sleep(0)
        if key in self._own:
            return self._own[key](caller, header, request)
        array = rule.array(request)
        if array and getattr(request, array) is not None:
            return await self._decide_items(slot, header, frame, request, permits, looked=looked)
        if key == API_METADATA:
            return self._list_topics(slot, header, frame, request)
        return self._answer_shown(slot, header, frame, rule)

    async def _decide_looked(
        self, slot: Slot, header: RequestHeader, frame: bytearray
    ) -> bytes | None:
        """Learn which topics exist, and decide about a request by topics' ids then."""
        await self._inner.look()
        answered = await self._decide(slot, header, frame, looked=True)
        return answered if isinstance(answered, bytes) else await answered

    async def _decide_items(
        self,
        slot: Slot,
        header: RequestHeader,
        frame: bytearray,
        request: Any,
        permits: _Permits,
        *,
        looked: bool,
    ) -> Answered:
        key, rule, turns = header.api_key, RULES[header.api_key], TimeSlices()
        array = rule.array(request)
        fetch = None
        if key == API_FETCH:
            fetch = partial(self._fetch, cast(Authorizer, self._authorizer).version)
        kept: list[Any] = []
        refused: dict[Any, ErrorCode] = {}  # each once, however often it is named
        for item in getattr(request, array):
            code = self._refusal(permits, rule, request, item)
            if code is _UNKNOWN_ID and not looked:
                return self._decide_looked(slot, header, frame)
            if code is None:
                kept.append(item)
            else:
                refused[item] = code
            if turns.due(_DECISION_STEPS):
                await asyncio.sleep(0)
        if not refused:
            if fetch is not None:
                return fetch(slot, header, frame)
            if key == API_OFFSET_FETCH:  # it has a list only if it names no topics
                return self._inner.answer(slot, header, frame)
            return self._answer_shown(slot, header, frame, rule)
        if rule.together or not (kept or key == API_METADATA):
            not_tried = [(item, ErrorCode.operation_not_attempted) for item in kept]
            return await refused_rows(header, rule.answers, [*refused.items(), *not_tried])
        changed = dataclasses.replace(request, **{array: tuple(kept)})
        rest = await write_request(header, frame, changed)
        caller = caller_of(slot.connection)
        add = partial(self._add_refused, header, rule, caller, refused.items())
        long = len(frame) > _AT_ONCE_BYTES or None
        return self._rewritten(slot, header, rest, add, fetch, long=long)

    def _permits(self, caller: Caller) -> _Permits:
        if self._authorizer is None:
            # Without ACLs, only a super user may change users.
            is_super = caller.principal in self._security.config.super_users
            return lambda *_: is_super
        return cache(partial(self._authorizer.permits, caller))

    def _answer_shown(
        self, slot: Slot, header: RequestHeader, frame: bytearray, rule: Rule
    ) -> Answered:
        """Let the request be answered, and hide what the client may not see."""
        if rule.hidden is None:
            return self._answer_inner(slot, header, frame)
        hide = partial(self._hide, header, rule, caller_of(slot.connection))
        return self._rewritten(slot, header, frame, hide)

    def _answer_inner(self, slot: Slot, header: RequestHeader, frame: bytearray) -> Answered:
        if header.api_key in AUDITED:
            note = partial(self._note_changes, slot, header, frame)
            return self._rewritten(slot, header, frame, note, self._inner.answer, long=False)
        if header.api_key != API_INIT_PRODUCER_ID:
            return self._inner.answer(slot, header, frame)
        token = USER.set(user_of(caller_of(slot.connection).principal))
        try:
            return self._inner.answer(slot, header, frame)
        finally:
            USER.reset(token)

    async def _note_changes(
        self, slot: Slot, header: RequestHeader, frame: bytearray, answer: bytes
    ) -> bytes:
        """Write what a request has changed into the audit log; return its response.

        It is one step: a client that disconnects must not keep a change out of the log.
        """
        request = read_request(header, frame)
        response = Request(header.api_key, header.version).decode(bytearray(answer))
        for operation, resource in changes(header.api_key, request, response):
            self._security.audit.write(
                "change", *caller_of(slot.connection), operation, resource, "success"
            )
        return answer

    def _refusal(self, permits: _Permits, rule: Rule, request: Any, item: Any) -> ErrorCode | None:
        """Return the error of an item that the client has no right to; None: it has.

        A topic with an unknown id is not passed on: Kafka may know it, and not the client's rights.
        """
        if rule.item is None:
            return TOPIC_REFUSED
        named = item
        by_id = rule is RULES[API_METADATA] or rule is RULES[API_DELETE_TOPICS]
        if by_id and getattr(item, "name", item) is None:
            is_metadata = rule is RULES[API_METADATA]
            if item.topic_id is None or (is_metadata and request.__version__ < BY_ID_FROM):
                return None  # it names nothing, and the response says so
            found = self._ids.find(item.topic_id.hex)
            if found is None:
                return _UNKNOWN_ID
            named = dataclasses.replace(item, name=found.name)
        need = rule.item(request, named)
        if not permits(*need.rights):
            return need.code
        if rule is RULES[API_METADATA] and not self._may_create(permits, request, named.name):
            return need.code
        return None

    def _may_create(self, permits: _Permits, request: Any, topic: str) -> bool:
        """Whether a Metadata request for a topic may pass: it would create one that is missing."""
        if topic in self._engine.topics or topic in self._engine.awaited:
            return True
        if not self._config.auto_create or not getattr(request, "allow_auto_topic_creation", True):
            return True
        return permits(*create_rights(topic))

    # ------------------------------------------------------------------ lists

    async def _list_topics(
        self,
        slot: Slot,
        header: RequestHeader,
        frame: bytearray,
        request: Any,
    ) -> bytes | None:
        """Answer a Metadata request for all topics by those that the client may see."""
        seen = await self._seen(caller_of(slot.connection))
        if seen is not None:
            element = element_class(type(request), "topics")
            fields = {each.name for each in dataclasses.fields(element)}
            more = {"topic_id": None} if "topic_id" in fields else {}
            changes: dict[str, Any] = {"topics": tuple(element(name=name, **more) for name in seen)}
            if hasattr(request, "allow_auto_topic_creation"):
                changes["allow_auto_topic_creation"] = False
            frame = await write_request(header, frame, dataclasses.replace(request, **changes))
        answered = self._inner.answer(slot, header, frame)
        return answered if isinstance(answered, bytes) else await answered

    async def _seen(self, caller: Caller) -> tuple[str, ...] | None:
        """Return the topics that a client may see; None: all."""
        authorizer, engine = cast(Authorizer, self._authorizer), self._engine
        versions = authorizer.version, engine.topics_version
        kept = self._lists.get(caller)
        if kept is not None and kept[0] == versions:
            return kept[1]
        names = [*engine.topics, *engine.awaited]
        seen: list[str] = []
        for first in range(0, len(names), _TOPICS_AT_ONCE):
            seen += (
                name for name in names[first : first + _TOPICS_AT_ONCE]
                if authorizer.allows(caller, Right(Operation.DESCRIBE, ResourceKind.TOPIC, name))
            )  # fmt: skip
            await asyncio.sleep(0)
        found = None if len(seen) == len(names) else tuple(seen)
        if len(self._lists) >= _LISTS_MAX:
            self._lists.clear()
        self._lists[caller] = versions, found
        return found

    async def _hide(
        self, header: RequestHeader, rule: Rule, caller: Caller, answer: bytes
    ) -> bytes:
        if rule.hidden is None:
            return answer
        response = await Request(header.api_key, header.version).decode_slowly(bytearray(answer))
        authorizer, turns = cast(Authorizer, self._authorizer), TimeSlices()

        async def allowed(right: Right) -> bool:
            if turns.due(_DECISION_STEPS):
                await asyncio.sleep(0)
            return authorizer.allows(caller, right)

        shown = await rule.hidden(response, allowed)
        encoder = Response(header.api_key, header.version)
        return await encoder.encode_slowly(header.correlation_id, shown)

    async def _add_refused(
        self,
        header: RequestHeader,
        rule: Rule,
        caller: Caller,
        refused: Iterable[tuple[Any, ErrorCode]],
        answer: bytes,
    ) -> bytes:
        if rule.hidden is not None and header.api_key != API_OFFSET_FETCH:
            answer = await self._hide(header, rule, caller, answer)
        return await with_refused(header, answer, rule.answers, refused)

    def _rewritten(
        self,
        slot: Slot,
        header: RequestHeader,
        frame: bytearray,
        rewrite: _Rewrite,
        handle: Callable[[Slot, RequestHeader, bytearray], Answered] | None = None,
        *,
        long: bool | None = None,
    ) -> Answered:
        """Answer a request; the response goes through a function.

        Parameters:
            handle: answers it; None: the inner handlers.
            long: whether the function may take long; None: for a long response.
        """
        inner = RewrittenSlot(slot)
        answered = (handle or self._answer_inner)(inner, header, frame)
        if isinstance(answered, bytes):
            if long is None:
                long = len(answered) > _AT_ONCE_BYTES
            return rewrite(answered) if long else at_once(rewrite(answered))

        async def later() -> bytes | None:
            answer = await answered
            if answer is None:
                answer = inner.filled
            return None if answer is None else await rewrite(answer)

        return later()
