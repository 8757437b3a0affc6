"""Who sends records, and under which numbers: by headers of the request, or by its body."""

from typing import Final

from starlette.datastructures import Headers

from pidlease.core.pid import Policy, policy_of
from pidlease.http_api.record_messages import NUMBER_MAX, AppendRequest
from pidlease.kafka.records.identity_header import NAME_BYTES_MAX, Identity
from proxy.http.record_refusals import WhoError

PRODUCER_ID: Final = "Producer-Id"
PRODUCER_EPOCH: Final = "Producer-Epoch"
PRODUCER_SEQ: Final = "Producer-Seq"

_HEADERS: Final = (PRODUCER_ID, PRODUCER_EPOCH, PRODUCER_SEQ)
_DIGITS_MAX: Final = len(str(NUMBER_MAX))
_INT64_MAX: Final = 2**63 - 1


def by_headers(headers: Headers) -> Identity | None:
    """The producer of policy epoch that the headers name; it counts requests.

    Returns:
        None: there is none of the three headers.

    Raises:
        WhoError: one is missing, is there twice, or makes no sense.
    """
    # As they came: not every producer id is Latin-1, which Headers takes them for.
    found: dict[str, list[bytes]] = {name: [] for name in _HEADERS}
    names = {name.lower().encode(): name for name in _HEADERS}
    for key, value in headers.raw:
        name = names.get(key)
        if name is not None:
            found[name].append(value)
    if not any(found.values()):
        return None
    for name, values in found.items():
        if not values:
            raise WhoError(name, f"is missing; {', '.join(_HEADERS)} come together, or not at all")
        if len(values) > 1:
            raise WhoError(name, f"is there {len(values)} times")
    epoch = _number(PRODUCER_EPOCH, found[PRODUCER_EPOCH][0])
    seq = _number(PRODUCER_SEQ, found[PRODUCER_SEQ][0])
    return Identity(-1, _name(found[PRODUCER_ID][0]), epoch, seq, seq)


def _number(name: str, value: bytes) -> int:
    # bytes.isdigit is about ASCII alone.
    if not value.isdigit() or len(value) > _DIGITS_MAX or int(value) > NUMBER_MAX:
        raise WhoError(name, f"is a number in digits, 0 to {NUMBER_MAX}, and nothing else")
    return int(value)


def _name(value: bytes) -> str:
    if not 0 < len(value) <= NAME_BYTES_MAX:
        raise WhoError(PRODUCER_ID, f"has {len(value)} bytes; it has 1 to {NAME_BYTES_MAX}")
    try:
        name = value.decode()
    except UnicodeDecodeError:
        raise WhoError(PRODUCER_ID, "is no UTF-8") from None
    # Without what cannot be seen: two that look alike would be two producers.
    if not name.isprintable():
        raise WhoError(PRODUCER_ID, "has characters that cannot be seen")
    return name


def by_body(request: AppendRequest, named: Identity | None) -> Identity | None:
    """Who sends the records of a JSON body.

    Parameters:
        request: the body.
        named: who the headers say it is.

    Returns:
        None: nobody says who it is.

    Raises:
        WhoError: both say so, something is missing, or makes no sense.
    """
    numbers = {
        "pid": request.pid,
        "generation": request.generation,
        "first_sequence": request.first_sequence,
        "last_sequence": request.last_sequence,
    }
    given = [name for name, number in numbers.items() if number is not None]
    if not given:
        return named
    if named is not None:
        raise WhoError(given[0], f"and {PRODUCER_ID} are two ways to say who sends; use one")
    pid, generation, first, last = numbers.values()
    if pid is None or generation is None or first is None:
        missing = next(name for name, number in numbers.items() if number is None)
        raise WhoError(missing, "is missing; pid, generation and first_sequence come together")
    if policy_of(pid) is not Policy.STRICT:
        raise WhoError("pid", f"{pid} was not leased by POST /v1/leases")
    return _leased(pid, generation, first, last, len(request.records))


def _leased(pid: int, generation: int, first: int, last: int | None, records: int) -> Identity:
    if last is None:
        last = first + records - 1
        if last > _INT64_MAX:
            raise WhoError("first_sequence", f"{records} records from it on go beyond {_INT64_MAX}")
    # What stands in the log is read by every start after this: nothing there may make no sense,
    # also where nothing is judged.
    if records > last - first + 1:
        raise WhoError("last_sequence", f"{records} records do not fit sequences {first}..{last}")
    return Identity(pid, "", generation, first, last)
