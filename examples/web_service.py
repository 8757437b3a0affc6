r"""A web service that stores each order once, even if its clients retry or a process crashes.

    uvicorn --app-dir examples web_service:app --port 8000

    curl -X PUT -H 'Content-Type: application/json' -d '{"drink": "tea", "table": 4}' \
        http://127.0.0.1:8000/orders/4711

The client chooses the order's id, and repeats a request until it gets a response other than 5xx.
SQLite keeps each order under a number before it is sent; the number is the record's sequence_id.
After a crash the service sends the orders without an offset again: the server appends those that
are not in the log yet. Start it again within a lease of the server (24 h by default) after the
crash, and run one process only: a second one with the same NAME would fence the first.

DATABASE and NAME belong together. With a new database, or an older copy of it, the numbers of new
orders would be those of stored ones, and the server would take them for duplicates: the service
does not start. Bring back the former database. If it is lost, choose another NAME. An order of the
topic is then stored again if the copy has it without an offset, or if its client repeats it.

Environment: DATABASE, NAME, PIDLEASE_SERVERS (Kafka listener), PIDLEASE_URL (HTTP listener).
"""

import asyncio
import os
import signal
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel

from pidlease.client import LeasedProducer

TOPIC: Final = "orders"
PARTITION: Final = 0
LEASE_S: Final = 24 * 3600
RESPONSE_S: Final = 30.0
NAME: Final = os.environ.get("NAME", "web-service")

database: Final = sqlite3.connect(os.environ.get("DATABASE", "orders.db"))
database.execute("PRAGMA synchronous = FULL")  # an order is on the disk before it is sent
database.execute(
    "CREATE TABLE IF NOT EXISTS orders (number INTEGER PRIMARY KEY AUTOINCREMENT,"
    " id TEXT UNIQUE, body TEXT, received_at REAL, offset INTEGER)"
)
changed: Final = asyncio.Condition()


class Order(BaseModel):
    """An order, as the client sends it."""

    drink: str
    table: int


def unsent(received_before: float = float("inf")) -> list[tuple[int, str]]:
    """Return number and body of orders without an offset, in the order of their numbers."""
    return database.execute(
        "SELECT number, body FROM orders WHERE offset IS NULL AND received_at < ?"
        " ORDER BY number LIMIT 1000",
        (received_before,),
    ).fetchall()


def stored(order_id: str) -> tuple[str, int | None]:
    """Return an order's body and its offset in the log; None: not stored yet."""
    query = "SELECT body, offset FROM orders WHERE id = ?"
    body, offset = database.execute(query, (order_id,)).fetchone()
    return body, offset


def highest_number() -> int:
    """Return the highest number that an order ever had, also one that was deleted; 0: none."""
    query = "SELECT COALESCE(MAX(seq), 0) FROM sqlite_sequence WHERE name = 'orders'"
    number: int = database.execute(query).fetchone()[0]
    return number


async def send_orders(producer: LeasedProducer) -> None:
    """Send the orders without an offset, then wait for new ones."""
    while True:
        orders = unsent()
        futures = [
            await producer.send(TOPIC, body.encode(), partition=PARTITION, sequence_id=number)
            for number, body in orders
        ]
        # A duplicate is a success: the order was in the log before.
        offsets = [(await future).offset for future in futures]
        with database:
            numbers = [number for number, _ in orders]
            database.executemany(
                "UPDATE orders SET offset = ? WHERE number = ?", zip(offsets, numbers, strict=True)
            )
        async with changed:
            changed.notify_all()
            await changed.wait_for(unsent)


def end_service(sending: "asyncio.Task[None]") -> None:
    """End the process if orders cannot be sent any more; a supervisor starts it again."""
    if not sending.cancelled():
        os.kill(os.getpid(), signal.SIGTERM)


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    """Send orders while the service runs."""
    if unsent(time.time() - LEASE_S):
        raise RuntimeError("orders without an offset are older than a lease: look into the topic")
    async with LeasedProducer(
        bootstrap_servers=os.environ.get("PIDLEASE_SERVERS", "127.0.0.1:9092"),
        leases=os.environ.get("PIDLEASE_URL", "http://127.0.0.1:8080"),
        name=NAME,
        # The server keeps the numbers for a lease after the last order, not after the first.
        policy="monotonic",
    ) as producer:
        await producer.lease(TOPIC, PARTITION)
        last, highest = producer.last_sequence_id(TOPIC, PARTITION), highest_number()
        if last > highest:
            raise RuntimeError(
                f"the server has orders of {NAME} up to number {last}, the database up to"
                f" {highest}: new orders would count as duplicates. Bring back the database of"
                " those orders, or choose another NAME"
            )
        sending = asyncio.create_task(send_orders(producer))
        sending.add_done_callback(end_service)
        yield
        sending.cancel()
        with suppress(asyncio.CancelledError):
            await sending  # raises why orders could not be sent


app: Final = FastAPI(lifespan=lifespan)


@app.put("/orders/{order_id}")
async def put_order(order_id: str, order: Order) -> dict[str, int | None]:
    """Store an order; respond when it is in the log."""
    body = order.model_dump_json()
    with database:
        database.execute(
            "INSERT INTO orders (id, body, received_at) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
            (order_id, body, time.time()),
        )
    try:
        async with asyncio.timeout(RESPONSE_S), changed:
            changed.notify_all()
            await changed.wait_for(lambda: stored(order_id)[1] is not None)
    except TimeoutError:
        raise HTTPException(503, "not stored yet: send the same request again") from None
    known, offset = stored(order_id)
    if body != known:
        raise HTTPException(409, "another order has this id")
    return {"offset": offset}
