"""Binds the addresses that a server listens on."""

import socket
from contextlib import ExitStack

from proxy.configuration.settings import split_address


def bound_sockets(address: str, setting: str, *, with_others: bool = False) -> list[socket.socket]:
    """Bind a socket for each address of HOST:PORT, without accepting connections yet.

    Bind before anything slow: a server that stands by, or replays for minutes, must not find out
    afterwards that its address is in use.

    Parameters:
        address: HOST:PORT; a name may have several addresses.
        setting: the setting's name, for the error.
        with_others: whether other processes listen there as well. The system gives each new
            connection to one of those that listen at that time (SO_REUSEPORT).

    Raises:
        OSError: the address is in use, or not this machine's.
    """
    host, port = split_address(address)
    with ExitStack() as undo:
        found: list[socket.socket] = []
        try:
            for family, kind, protocol, _, address_of_host in socket.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            ):
                each = undo.enter_context(socket.socket(family, kind, protocol))
                each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if with_others:
                    each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                if family == socket.AF_INET6:
                    each.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                each.bind(address_of_host)
                found.append(each)
        except OSError as error:
            raise OSError(f"{setting} {address}: {error}") from error
        undo.pop_all()
        return found
