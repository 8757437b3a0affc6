"""The matrix of rights of the HTTP routes. A route without a row here is refused to all."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal, NamedTuple
from urllib.parse import parse_qs

from starlette.types import Scope

from pidlease.coordination.journal.put_request import PUT_PATH
from pidlease.http_api.job_messages import JOBS_PATH
from pidlease.http_api.ping_messages import PING_PATH
from pidlease.http_api.state_messages import STATES_PATH
from proxy.http.streams.stream_names import StreamNameError, topic_for
from proxy.security.acls import Operation, ResourceKind
from proxy.security.authorizer import Right

#: What the bytes of a request, or of its response, count for.
Traffic = Literal["", "produced", "fetched"]
#: Several needs, each with alternatives.
Needs = Sequence[tuple[Right, ...]]


class RouteRule(NamedTuple):
    """What the routes of a path need.

    Attributes:
        methods: of the routes.
        path: matches the whole path.
        needs: what a request needs, by its path's groups and its scope.
        public: whether the path needs no login.
        of_servers: whether active servers send it for themselves, and need no right then.
        in_route: what the route checks itself, since it depends on the body; for people.
        traffic: for which quota bytes count.
    """

    methods: tuple[str, ...]
    path: re.Pattern[str]
    needs: Callable[[re.Match[str], Scope], Needs]
    public: bool = False
    of_servers: bool = False
    in_route: str = ""
    traffic: Traffic = ""


def _none(_: re.Match[str], __: Scope) -> Needs:
    return ()


def _cluster(operation: Operation) -> Callable[[re.Match[str], Scope], Needs]:
    return lambda _, __: [(Right(operation, ResourceKind.CLUSTER),)]


def _topic(operation: Operation) -> Callable[[re.Match[str], Scope], Needs]:
    return lambda found, _: [(Right(operation, ResourceKind.TOPIC, found[1]),)]


def _producers(_: re.Match[str], scope: Scope) -> Needs:
    topics = parse_qs(scope["query_string"].decode("latin-1")).get("topic", ())
    if not topics:
        return [(Right(Operation.DESCRIBE, ResourceKind.CLUSTER),)]
    return [(Right(Operation.READ, ResourceKind.TOPIC, each),) for each in topics]


def _released(_: re.Match[str], scope: Scope) -> Needs:
    names = parse_qs(scope["query_string"].decode("latin-1")).get("name", ())
    return [(Right(Operation.WRITE, ResourceKind.TRANSACTIONAL_ID, each),) for each in names]


def _path(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.DOTALL)


_READS: Final = ("GET", "HEAD")
_ALTER: Final = Operation.ALTER_CONFIGS

_RULES: Final = (
    RouteRule(_READS, _path("/healthz"), _none, public=True),
    RouteRule(_READS, _path("/readyz"), _none, public=True),
    RouteRule(("GET",), _path(PING_PATH), _none, public=True, of_servers=True),
    RouteRule(("GET",), _path("/metrics"), _cluster(Operation.DESCRIBE)),
    RouteRule(("GET",), _path("/v1/status"), _cluster(Operation.DESCRIBE)),
    RouteRule(("GET",), _path("/v1/servers"), _cluster(Operation.DESCRIBE)),
    RouteRule(("PATCH",), _path("/v1/servers/[^/]+"), _cluster(Operation.ALTER)),
    RouteRule(("POST",), _path("/v1/servers/rebalance"), _cluster(Operation.ALTER)),
    RouteRule(("POST",), _path(PUT_PATH), _cluster(Operation.CLUSTER_ACTION), of_servers=True),
    RouteRule(("POST",), _path(f"{STATES_PATH}(?:/offsets)?"), _cluster(Operation.CLUSTER_ACTION),
              of_servers=True),
    RouteRule(("GET",), _path("/v1/(?:history|outcomes|partitions|leases|refusals|jobs)"),
              _cluster(Operation.DESCRIBE)),
    RouteRule(("POST",), _path(JOBS_PATH), _none,
              in_route="IdempotentWrite, or Write on any topic"),
    RouteRule(("GET",), _path("/v1/producers/[^/]+(?:/events)?"), _cluster(Operation.DESCRIBE)),
    RouteRule(("GET",), _path("/v1/topics/([^/]+)/partitions/[^/]+/offset"),
              _topic(Operation.READ)),
    RouteRule(_READS, _path("/(?:console/[^/]+)?"), _none),
    RouteRule(_READS, _path("/docs"), _none),
    RouteRule(_READS, _path(r"/openapi\.json"), _none),
    RouteRule(("POST",), _path("/v1/leases"), _none, of_servers=True,
              in_route="Write on the name, or IdempotentWrite; Describe on the topic"),
    RouteRule(("POST",), _path("/v1/leases/batch"), _none, in_route="the same for each lease"),
    RouteRule(("GET",), _path("/v1/producers"), _producers),
    RouteRule(("DELETE",), _path("/v1/producers"), _released),
    RouteRule(("GET",), _path("/v1/topics"), _none, in_route="topics are filtered by Describe"),
    RouteRule(("POST",), _path("/v1/topics"), _none, in_route="Create on the topic or cluster"),
    RouteRule(("GET",), _path("/v1/topics/([^/]+)"), _topic(Operation.DESCRIBE)),
    RouteRule(("DELETE",), _path("/v1/topics/([^/]+)"), _topic(Operation.DELETE)),
    RouteRule(("PATCH",), _path("/v1/topics/([^/]+)/settings"), _topic(_ALTER)),
    RouteRule(("GET",), _path("/v1/topics/([^/]+)/partitions"), _topic(Operation.DESCRIBE)),
    RouteRule(("GET",), _path("/v1/topics/([^/]+)/partitions/[^/]+/records"),
              _topic(Operation.READ), traffic="fetched"),
    RouteRule(("POST",), _path("/v1/topics/([^/]+)/(?:partitions/[^/]+/)?records"),
              _topic(Operation.WRITE), in_route="Create where the topic would be created",
              traffic="produced"),
    RouteRule(("GET",), _path("/v1/topic-defaults"), _cluster(Operation.DESCRIBE_CONFIGS)),
    RouteRule(("PATCH",), _path("/v1/topic-defaults"), _cluster(_ALTER)),
)  # fmt: skip

_OF_STREAMS: Final[Mapping[str, tuple[Operation, Traffic]]] = {
    "GET": (Operation.READ, "fetched"), "HEAD": (Operation.DESCRIBE, ""),
    "POST": (Operation.WRITE, "produced"), "PUT": (Operation.CREATE, "produced"),
    "DELETE": (Operation.DELETE, ""),
}  # fmt: skip


class RouteRights:
    """Finds the rule of a request.

    Parameters:
        stream_prefix: of the paths of streams.
    """

    def __init__(self, stream_prefix: str) -> None:
        streams = _path(re.escape(stream_prefix) + "/(.*)")
        rules = [
            RouteRule((method,), streams, _stream(operation),
                      in_route="Write for the first values; Read on the stream to fork;"
                      " AlterConfigs to make a stream of a topic, and Delete if it is to expire",
                      traffic=traffic)
            for method, (operation, traffic) in _OF_STREAMS.items()
        ]  # fmt: skip
        self.rules: Final = (*rules, *_RULES)

    def find(self, scope: Scope) -> tuple[RouteRule, re.Match[str]] | None:
        """Return the rule of a request, and the match of its path; None: there is none."""
        for rule in self.rules:
            if scope["method"] in rule.methods and (found := rule.path.fullmatch(scope["path"])):
                return rule, found
        return None


def _stream(operation: Operation) -> Callable[[re.Match[str], Scope], Needs]:
    def needs(found: re.Match[str], _: Scope) -> Needs:
        try:
            topic = topic_for(found[1])
        except (StreamNameError, UnicodeEncodeError):
            return ()  # no stream has this path, and the route says why
        if operation is not Operation.CREATE:
            return [(Right(operation, ResourceKind.TOPIC, topic),)]
        # A PUT may have values: it creates, and appends.
        create = (
            Right(operation, ResourceKind.TOPIC, topic),
            Right(operation, ResourceKind.CLUSTER),
        )
        return [create, (Right(Operation.WRITE, ResourceKind.TOPIC, topic),)]

    return needs
