"""What to do about each kind of refusal, and the page of the documentation that says more."""

from functools import cache
from importlib.metadata import PackageNotFoundError, metadata
from typing import Final, NamedTuple

from pidlease.engine.append_outcome import Status
from pidlease.engine.recent_events import NO_PID


class Action(NamedTuple):
    """What to do.

    Attributes:
        text: in one or two sentences.
        page: of the documentation, with the heading.
    """

    text: str
    page: str


_TROUBLESHOOT: Final = "operate/troubleshoot"
_APPENDS_FAIL: Final = f"{_TROUBLESHOOT}/#appends-fail"
_LEASES: Final = f"{_TROUBLESHOOT}/#the-lease-table-is-full-or-no-pid-is-left"
#: By the kinds of events.
ACTIONS: Final[dict[str, Action]] = {
    Status.GAP.value: Action(
        "An earlier batch of the producer is missing. Send from the expected sequence number on.",
        f"{_TROUBLESHOOT}/#a-producer-gets-sequence-gaps",
    ),
    Status.OVERLAP.value: Action(
        "A part of the batch is stored. Send the rest, from the expected sequence number on.",
        f"{_TROUBLESHOOT}/#a-producer-gets-sequence-gaps",
    ),
    Status.FENCED.value: Action(
        "A later producer has the same identity. Stop the older instance, or give each its own"
        " name.",
        f"{_TROUBLESHOOT}/#a-producer-is-fenced",
    ),
    Status.MALFORMED.value: Action(
        "The batch breaks the rules of its policy. The reason says which; correct the client.",
        f"{_TROUBLESHOOT}/#log-lines",
    ),
    Status.UNKNOWN.value: Action(
        "The PID was never leased here, or its lease has ended. Lease again.",
        f"{_TROUBLESHOOT}/#a-pid-is-unknown",
    ),
    Status.FAILED.value: Action(
        "The log could not append, or the outcome is unknown. Clients send the batch again; look"
        " at the disk or at Kafka if it goes on.",
        _APPENDS_FAIL,
    ),
    Status.STOPPED.value: Action(
        "The partition accepts no appends until it is repaired.",
        "operate/alerts/#partition-stopped",
    ),
    Status.NO_LEASE.value: Action(
        "The lease table is full. Raise ring-capacity, or lower lease-seconds.", _LEASES
    ),
    Status.FORBIDDEN.value: Action(
        "The topic does not allow this policy, or the stream is closed. Change the topic's"
        " policies, or the producer.",
        "operate/topic-policies/",
    ),
    Status.SESSION_ENDED.value: Action(
        "An earlier batch of the producer failed on its connection. The client connects and sends"
        " again.",
        _APPENDS_FAIL,
    ),
    Status.REFUSED.value: Action(
        "Kafka did not append the batch, for the given reason.", "operate/alerts/#upstream-failing"
    ),
    Status.NOT_OWNER.value: Action(
        "Another server writes to this partition now. Clients find it by themselves.",
        "operate/alerts/#writer-lost",
    ),
    Status.KEY_REUSED.value: Action(
        "The Idempotency-Key was used for another request; this one is not stored. Use a new"
        " key for each request.",
        "produce/http/#by-idempotency-key",
    ),
    NO_PID: Action(
        "No PID could be leased: the lease table is full, or no block of PIDs came in time.",
        _LEASES,
    ),
}


@cache
def docs_base() -> str:
    """Return where the documentation is published; empty: the package is not installed."""
    try:
        urls = metadata("pidlease").get_all("Project-URL") or []
    except PackageNotFoundError:
        return ""
    found = (each.partition(", ") for each in urls)
    return next((url.rstrip("/") + "/" for label, _, url in found if label == "Documentation"), "")


def runbook_of(kind: str) -> str:
    """Return the address of the page about a kind of refusal; empty: it is unknown."""
    base = docs_base()
    return base + ACTIONS[kind].page if base else ""
