"""A client that leases as fast as it can: InitProducerId, by hand."""

import asyncio
import struct

from pidlease.testing.loopback_ports import LOOPBACK
from tests.servers.pidlease import PidleaseServer

#: Size, key 22, version 0, correlation id, an empty client id, no transactional id, a timeout.
_REQUEST = struct.Struct(">ihhihhi")
#: Size, correlation id, throttle time, error, PID, epoch.
_ANSWER = struct.Struct(">iiihqh")
_LOADING = 14
#: Requests on their way at once.
IN_FLIGHT = 20


async def lease_all(server: PidleaseServer, pids: list[int], refused: list[int]) -> None:
    """Lease until the connection ends. Each PID is in the list as soon as it was answered."""
    reader, writer = await asyncio.open_connection(LOOPBACK, server.kafka_port)
    request = _REQUEST.pack(_REQUEST.size - 4, 22, 0, 1, 0, -1, 1000)
    try:
        writer.write(request * IN_FLIGHT)
        while True:
            answer = await reader.readexactly(_ANSWER.size)
            _, _, _, error, pid, epoch = _ANSWER.unpack(answer)
            if error == _LOADING:
                refused.append(1)
                await asyncio.sleep(0.005)
            else:
                assert (error, epoch) == (0, 0)
                pids.append(pid)
            writer.write(request)
    finally:
        writer.transport.abort()
