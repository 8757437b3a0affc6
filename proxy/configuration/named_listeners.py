"""The Kafka listeners of a server: the one of `kafka_listen`, or several by name (`listeners`)."""

from typing import Final, NamedTuple

from pidlease.storage.errors import DataFolderError
from proxy.configuration.listener_lists import (
    PROTOCOLS,
    listener_addresses,
    listener_protocols,
    shown_listeners,
)
from proxy.configuration.settings import Settings, split_address

#: What `listeners` replaces.
_REPLACED: Final = ("kafka_listen", "kafka_advertise", "kafka_security_protocol")
_EVERY_ADDRESS: Final = ("0.0.0.0", "::")  # noqa: S104 - compared


class NamedListener(NamedTuple):
    """A Kafka listener.

    Attributes:
        name: empty: the one of `kafka_listen`.
        address: HOST:PORT at which it listens.
        advertised: HOST:PORT that its clients connect to.
        protocol: its security protocol.
    """

    name: str
    address: str
    advertised: str
    protocol: str

    @property
    def option(self) -> str:
        """How errors name it."""
        return f"--listeners {self.name}" if self.name else "--kafka-listen"


def kafka_listeners(settings: Settings) -> tuple[NamedListener, ...]:
    """Return the Kafka listeners; the first one is the default listener.

    Raises:
        DataFolderError: the settings contradict each other, or one is missing.
    """
    if not settings.listeners:
        for option in ("advertised_listeners", "listener_security_protocol_map"):
            if getattr(settings, option):
                raise DataFolderError(
                    f"--{option.replace('_', '-')} needs --listeners; without, there is one"
                    " listener: --kafka-listen"
                )
        address = settings.kafka_listen
        return (
            NamedListener(
                "", address, settings.kafka_advertise or address, settings.kafka_security_protocol
            ),
        )
    _check_replaced(settings)
    addresses = listener_addresses(settings.listeners)
    advertised = listener_addresses(settings.advertised_listeners)
    protocols = listener_protocols(settings.listener_security_protocol_map)
    for option, names in (
        ("advertised-listeners", advertised), ("listener-security-protocol-map", protocols),
    ):  # fmt: skip
        if unknown := [name for name in names if name not in addresses]:
            raise DataFolderError(
                f"--{option} has {unknown[0]}, and --listeners has only {', '.join(addresses)}; add"
                " it there, or remove it here"
            )
    found = tuple(
        NamedListener(name, address, advertised.get(name, address), _protocol(name, protocols))
        for name, address in addresses.items()
    )
    _check_addresses(found)
    return found


def shown_kafka_listeners(settings: Settings) -> str:
    """Return where the server listens for Kafka clients, for log lines."""
    return shown_listeners((each.name, each.address) for each in kafka_listeners(settings))


def _check_replaced(settings: Settings) -> None:
    for name in _REPLACED:
        # The variable PIDLEASE_KAFKA_LISTEN of the image can be emptied, but not removed.
        if name in settings.model_fields_set and getattr(settings, name):
            raise DataFolderError(
                f"--listeners replaces --{name.replace('_', '-')}; remove {name}"
                + (" (in a container: PIDLEASE_KAFKA_LISTEN=)" if name == "kafka_listen" else "")
            )


def _protocol(name: str, protocols: dict[str, str]) -> str:
    if name in protocols:
        return protocols[name]
    if name in PROTOCOLS:
        return name
    raise DataFolderError(
        f"--listeners has {name}, which is no security protocol; say which one it has, for example"
        f" --listener-security-protocol-map {name}:SASL_SSL"
    )


def _check_addresses(listeners: tuple[NamedListener, ...]) -> None:
    ports: dict[int, str] = {}
    advertised: dict[str, str] = {}
    for each in listeners:
        _, port = split_address(each.address)
        if port in ports:
            raise DataFolderError(
                f"--listeners {ports[port]} and {each.name} both have port {port}; give each its"
                " own"
            )
        ports[port] = each.name
        host, _ = split_address(each.advertised)
        if host in _EVERY_ADDRESS:
            raise DataFolderError(
                f"--listeners {each.name}: {host} is no address that a client can connect to; give"
                f" one by --advertised-listeners {each.name}://HOST:PORT"
            )
        if each.advertised in advertised:
            raise DataFolderError(
                f"--advertised-listeners: the clients of {advertised[each.advertised]} and"
                f" {each.name} would both connect to {each.advertised}; give each its own"
            )
        advertised[each.advertised] = each.name
