"""The settings of each worker, by those of all: ports and a data directory of its own."""

from itertools import combinations
from pathlib import Path
from typing import Final

from pidlease.coordination.pid_sequence import KAFKA_MARK, ZOOKEEPER_MARK
from pidlease.storage.errors import DataFolderError
from proxy.configuration.listener_lists import shown_listeners
from proxy.configuration.named_listeners import kafka_listeners
from proxy.configuration.settings import Settings

#: The folder of a data directory with those of the further workers.
WORKERS_FOLDER: Final = "workers"
_PORT_MAX: Final = 65_535
#: Worker 3 listens three ports above the common one.
_NUMBERED: Final = ("kafka_listen", "http_listen", "kafka_advertise", "http_advertise")
_KAFKA: Final = ("kafka_listen", "kafka_advertise")


def worker_settings(settings: Settings, number: int) -> Settings:
    """Return the settings of a worker.

    Worker 1 uses the data directory itself: a server that gets more workers keeps its state, and
    one with a single worker again as well.

    Parameters:
        settings: those of all workers.
        number: of the worker, from 1 on.
    """
    folder = Path(settings.data_dir)
    return settings.model_copy(
        update={
            "workers": 1,
            "data_dir": folder if number == 1 else folder / WORKERS_FOLDER / str(number),
            **{name: _numbered(_address(settings, name), number) for name in _names(settings)},
            **_numbered_listeners(settings, number),
        }
    )


def check_workers(settings: Settings) -> None:
    """Check that several workers can run with these settings.

    Raises:
        DataFolderError: they cannot; the text says what to do.
    """
    count = settings.workers
    options = {
        f"--{name.replace('_', '-')}": _port(_address(settings, name)) for name in _names(settings)
    }
    listening = {name: port for name, port in options.items() if name.endswith("-listen")}
    if settings.listeners:
        for each in kafka_listeners(settings):
            options[f"--advertised-listeners {each.name}"] = _port(each.advertised)
            options[each.option] = listening[each.option] = _port(each.address)
    for option, port in options.items():
        last = port + count
        if last > _PORT_MAX:
            raise DataFolderError(
                f"{option}: {count} workers need the {count} ports above it, and {last} is no port;"
                " give a lower one"
            )
    for one, other in combinations(listening, 2):
        ports = [listening[one], listening[other]]
        if abs(ports[0] - ports[1]) <= count:
            raise DataFolderError(
                f"{one} and {other}: {count} workers need"
                f" the {count} ports above each of {ports[0]} and {ports[1]}; put them further"
                " apart"
            )
    sequence = Path(settings.data_dir) / "sequence"
    moved = any((sequence / mark).exists() for mark in (ZOOKEEPER_MARK, KAFKA_MARK))
    if (sequence / "blocks").exists() and not moved:
        # The first worker would move them while others lease already.
        raise DataFolderError(
            f"{sequence} has PIDs that the other workers do not have; start the server once without"
            " --workers: it moves them to the coordinator"
        )


def _names(settings: Settings) -> tuple[str, ...]:
    """Return the settings with an address of which each worker has one of its own."""
    names = [name for name in _NUMBERED if not (settings.listeners and name in _KAFKA)]
    return (*names,) if settings.metrics_listen is None else (*names, "metrics_listen")


def _numbered_listeners(settings: Settings, number: int) -> dict[str, str]:
    """Return the settings of a worker's named Kafka listeners; empty: it has none."""
    if not settings.listeners:
        return {}
    listeners = kafka_listeners(settings)
    return {
        "listeners": shown_listeners(
            (each.name, _numbered(each.address, number)) for each in listeners
        ),
        "advertised_listeners": shown_listeners(
            (each.name, _numbered(each.advertised, number)) for each in listeners
        ),
    }


def _address(settings: Settings, name: str) -> str:
    """Return an address of all workers; an advertised one is the listener's by default."""
    found: str | None = getattr(settings, name)
    return found or getattr(settings, name.replace("_advertise", "_listen"))


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])


def _numbered(address: str, number: int) -> str:
    return f"{address.rpartition(':')[0]}:{_port(address) + number}"
