"""The errors of a producer's futures, and of its next `send`.

    ProducerError                 the server refuses the record; the text has its reason
    |-- SessionEndedError         never sent; a new producer may send the record again
    |   |-- LeaseEndedError       the server has forgotten the PID
    |   `-- ProducerClosedError   the producer was stopped, or was never started
    |-- DeliveryTimeoutError      never sent, and not in the log; the text has the reason
    |-- OutcomeUnknownError       sent, and may be in the log: do not send the record again blindly
    |-- FencedError               another producer has taken over the PID or the name
    |-- LeaseRefusedError         the server refused a lease; has `status` and `field`
    `-- LeaseUnavailableError     no lease now; only `LeaseClient` raises it, a producer waits

They are final: the client has already retried what can be retried, until `delivery_timeout_ms`.
Arguments of a wrong type or value raise TypeError and ValueError.
"""


class ProducerError(Exception):
    """A producer failed; if the server refused the record, the text is the server's.

    ```python
    from pidlease.client import BlockingProducer, ProducerError

    with BlockingProducer(
        bootstrap_servers="127.0.0.1:9092", leases="http://127.0.0.1:8080"
    ) as producer:
        try:
            producer.send_and_wait("orders", b"tea")
        except ProducerError as error:
            print(error)
    ```
    """


class SessionEndedError(ProducerError):
    """The producer accepts no more records; on a future: this record was never sent.

    A new producer may send it again: that makes no duplicate.

    ```python
    from pidlease.client import BlockingProducer, SessionEndedError

    server = {"bootstrap_servers": "127.0.0.1:9092", "leases": "http://127.0.0.1:8080"}
    try:
        with BlockingProducer(**server) as producer:
            producer.send_and_wait("orders", b"tea")
    except SessionEndedError:
        with BlockingProducer(**server) as producer:
            producer.send_and_wait("orders", b"tea")
    ```
    """


class LeaseEndedError(SessionEndedError):
    """The lease has ended: the server has forgotten the PID.

    ```python
    from pidlease.client import BlockingProducer, LeaseEndedError

    with BlockingProducer(
        bootstrap_servers="127.0.0.1:9092", leases="http://127.0.0.1:8080", name="nightly"
    ) as producer:
        try:
            producer.send_and_wait("orders", b"tea", partition=0)
        except LeaseEndedError:
            print("silent for longer than a lease: read the log before sending again")
    ```
    """


class ProducerClosedError(SessionEndedError):
    """The producer was stopped, or was never started.

    ```python
    from pidlease.client import BlockingProducer, ProducerClosedError

    producer = BlockingProducer(
        bootstrap_servers="127.0.0.1:9092", leases="http://127.0.0.1:8080"
    )
    try:
        producer.send("orders", b"tea")
    except ProducerClosedError:
        print("call start(), or use a with block")
    ```
    """


class OutcomeUnknownError(ProducerError):
    """The record was sent, and may or may not be in the log; it is never sent again.

    With a name, the next producer's `last_sequence_id` shows whether it is.

    ```python
    from pidlease.client import BlockingProducer, OutcomeUnknownError

    server = {"bootstrap_servers": "127.0.0.1:9092", "leases": "http://127.0.0.1:8080"}
    try:
        with BlockingProducer(**server, name="import-8") as producer:
            producer.send_and_wait("orders", b"tea", partition=0)
    except OutcomeUnknownError:
        with BlockingProducer(**server, name="import-8") as producer:
            print(producer.last_sequence_id("orders", 0))
    ```
    """


class DeliveryTimeoutError(ProducerError):
    """The record could not be sent within `delivery_timeout_ms`; it is not in the log.

    ```python
    from pidlease.client import BlockingProducer, DeliveryTimeoutError

    with BlockingProducer(
        bootstrap_servers="127.0.0.1:9092",
        leases="http://127.0.0.1:8080",
        delivery_timeout_ms=20_000,
    ) as producer:
        try:
            producer.send_and_wait("orders", b"tea")
        except DeliveryTimeoutError:
            print("not stored: send it again, by any producer")
    ```
    """


class FencedError(ProducerError):
    """Another producer has taken over this PID or name.

    ```python
    from pidlease.client import BlockingProducer, FencedError

    server = {"bootstrap_servers": "127.0.0.1:9092", "leases": "http://127.0.0.1:8080"}
    with BlockingProducer(**server, name="import-7") as first:
        first.send_and_wait("orders", b"tea", partition=0)
        with BlockingProducer(**server, name="import-7") as second:
            second.send_and_wait("orders", b"cake", partition=0)
            try:
                first.send_and_wait("orders", b"coffee", partition=0)
            except FencedError:
                print("the second producer has the name")
    ```
    """


class LeaseRefusedError(ProducerError):
    """The server refused a lease.

    ```python
    import asyncio

    from pidlease.client import LeaseClient, LeaseRefusedError

    async def main() -> None:
        async with LeaseClient("http://127.0.0.1:8080") as client:
            try:
                await client.lease_pid("no-such-topic", 0)
            except LeaseRefusedError as error:
                print(error.status, error.field, error)

    asyncio.run(main())
    ```

    Attributes:
        status: the HTTP status; 0: no request was sent, because TLS does not fit.
        field: the field of the request that is wrong; None: none in particular.
    """

    def __init__(self, text: str, status: int, field: str | None = None) -> None:
        super().__init__(text, status, field)
        self.text = text
        self.status = status
        self.field = field

    def __str__(self) -> str:
        return f"{self.text} (HTTP {self.status})" if self.status else self.text


class LeaseUnavailableError(ProducerError):
    """The server cannot lease now: it is away, recovers, or is full. Try again.

    ```python
    import asyncio

    from pidlease.client import LeaseClient, LeaseUnavailableError

    async def main() -> None:
        async with LeaseClient("http://127.0.0.1:9999") as client:
            try:
                await client.lease_pid("orders", 0)
            except LeaseUnavailableError:
                print("try again in some seconds")

    asyncio.run(main())
    ```
    """


def copy_of(error: ProducerError) -> ProducerError:
    """Copy an error for each receiver: its traceback grows each time that it is raised."""
    return type(error)(*error.args)
