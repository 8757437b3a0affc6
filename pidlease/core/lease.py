"""A request for a lease, and the granted lease; shared by engine, client and Spark's sink."""

from dataclasses import dataclass
from typing import Any, Final

#: The PID of a request for a new one.
NO_PID: Final = -1


@dataclass(frozen=True, slots=True)
class LeaseWanted:
    """A request for a lease on one partition.

    ```python
    import asyncio

    from pidlease.client import LeaseClient, LeaseWanted

    async def main() -> None:
        wanted = [LeaseWanted("orders", 0), LeaseWanted("orders", 0, name="import-9")]
        async with LeaseClient("http://127.0.0.1:8080") as client:
            for each in await client.lease_pids(wanted):
                print(each)  # a Lease, or the error of this one

    asyncio.run(main())
    ```

    Attributes:
        pid: -1: a new PID, or the name's current one; otherwise a leased PID.
        name: the producer's name; None: no name, or the PID identifies the producer.
        policy: strict or monotonic.
        renew: lease a new PID, because the name's lease is about to end.
        generation: with name, pid and renew: renew only if the name was last granted this PID and
            this generation; -1: take the name over from its current holder.
        assign_name: let the server choose a name.
    """

    topic: str
    partition: int
    pid: int = NO_PID
    name: str | None = None
    policy: str = "strict"
    renew: bool = False
    generation: int = -1
    assign_name: bool = False

    def body(self) -> dict[str, Any]:
        """Return the request's JSON body, without fields that have their defaults."""
        body: dict[str, Any] = {"topic": self.topic, "partition": self.partition, "pid": self.pid}
        if self.name is not None or self.assign_name:
            body |= {"policy": self.policy, "renew": self.renew}
        if self.name is not None:
            body["name"] = self.name
        if self.assign_name:
            body["assign_name"] = True
        if self.generation >= 0:
            body["generation"] = self.generation
        return body


@dataclass(frozen=True, slots=True)
class Lease:
    """A granted lease on one partition.

    ```python
    import asyncio

    from pidlease.client import LeaseClient

    async def main() -> None:
        async with LeaseClient("http://127.0.0.1:8080") as client:
            lease = await client.lease_named("orders", 0, "import-9")
            print(lease.pid, lease.generation, lease.sequence_number)

    asyncio.run(main())
    ```

    Attributes:
        sequence_number: the first sequence number of the next batch.
        resume_at: where the numbering of the name's records continues. Above `sequence_number` if
            the name had another PID before and this one has no state on the partition.
        expire_ms: when the lease ends, in ms since 1970 by the server's clock; -1: unknown.
        ends_at: the same by the client's monotonic clock, in seconds; infinite: unknown.
        name: the name that the PID is bound to.
    """

    topic: str
    partition: int
    pid: int
    generation: int
    sequence_number: int
    resume_at: int
    expire_ms: int
    ends_at: float = float("inf")
    name: str | None = None
