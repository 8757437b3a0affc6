"""`pidlease serve`: an option for each setting, then the server."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args, get_origin

import typer
from pydantic import SecretStr
from pydantic.fields import FieldInfo
from rich.console import Console

from proxy.configuration.settings import Settings, SettingsError, load_settings
from proxy.log_output import configure_logs

#: The exit code for a wrong option, and for a server that cannot start.
USAGE_ERROR = 2

_errors = Console(stderr=True, soft_wrap=True)


def run_server(settings: Settings, reload: Callable[[], Settings]) -> int:
    """Run the server, or a supervisor and its workers; return the exit code.

    Raises:
        SettingsError: it cannot start with these settings.
    """
    # Only now: the help needs none of it.
    from proxy import app  # noqa: PLC0415

    try:
        if settings.workers > 1:
            from proxy.workers.supervisor import supervise  # noqa: PLC0415

            return supervise(settings, reload)
        app.serve(settings, reload)
    except app.StartError as error:
        raise SettingsError(str(error)) from error
    return 0


def serve(config: Path | None, **given: Any) -> None:  # noqa: ANN401 - a setting each
    """Run the server. Each option is also PIDLEASE_..., or a line of the TOML file. Exit code 0: stopped; 2: it could not start; 3: the stop took longer than stop-seconds.

    It runs until SIGTERM or SIGINT. Then it refuses new requests, completes those in flight, writes a snapshot, and closes the log. At SIGHUP it reads the TOML file again.
    """  # noqa: E501 - a paragraph is one line in the help
    try:
        settings = load_settings(config, given)
        configure_logs(settings)
        code = run_server(settings, lambda: load_settings(config, given))
    except SettingsError as error:
        _errors.print(f"pidlease: {error}", style="red", markup=False, highlight=False)
        raise typer.Exit(USAGE_ERROR) from None
    if code:
        raise typer.Exit(code)


#: Panels of the help of `serve`, by the beginnings of their options' names; the first that fits.
_PANELS: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    ("Addresses", ("kafka_", "listeners", "advertised_", "http_", "metrics_", "stream_", "cors_",
                   "console")),
    ("Security", ("kafka_security_", "listener_security_", "http_security_", "metrics_security_",
                  "ssl_", "server_", "sasl_",
                  "connections_max_reauth_", "acls", "super_", "allow_", "audit_", "quota_",
                  "insecure")),
    ("Kafka as the log", ("log", "upstream", "coordination", "shared", "workers")),
    ("ZooKeeper", ("zookeeper",)),
    ("Topics and their log", ("data_dir", "fsync", "flush_", "segment_", "retention_",
                              "auto_create_", "default_partitions", "partitions_max")),
    ("Producers and leases", ("judging", "lease_", "ring_", "idempotency_", "snapshot_")),
    ("Consumer groups", ("group", "offsets_")),
    ("Limits", ("request_", "batch_", "fetch_", "memory_", "connections_", "idle_", "io_")),
    ("Stopping, log lines and tests", ("stop_", "log_", "faults")),
)  # fmt: skip
#: Units by the ends of names.
_UNITS: Final = {"_bytes": "BYTES", "_bytes_max": "BYTES", "_seconds": "SECONDS", "_ms": "MS",
                 "_listen": "HOST:PORT", "_advertise": "HOST:PORT",
                 "listeners": "NAME://HOST:PORT,...",
                 "_protocol_map": "NAME:PROTOCOL,..."}  # fmt: skip


def _panel(name: str) -> str:
    """Return the help panel of a setting; of two that fit, the one with the longer beginning."""
    fits = ((len(start), panel) for panel, starts in _PANELS for start in starts
            if name.startswith(start))  # fmt: skip
    return max(fits, default=(0, "Others"))[1]


def _metavar(name: str, field: FieldInfo) -> str:
    """Return how the help shows a setting's values: choices, a unit or a type."""
    if get_origin(field.annotation) is Literal:
        return "|".join(get_args(field.annotation))
    unit = next((unit for end, unit in _UNITS.items() if name.endswith(end)), None)
    kinds = {int: "INTEGER", float: "NUMBER", Path: "PATH"}
    inner = next(
        (each for each in kinds if each in (field.annotation, *get_args(field.annotation))), None
    )
    return unit or (kinds[inner] if inner else "TEXT")


def _default(field: FieldInfo) -> str:
    """Return the default of a setting, as the help shows it; empty: it has none."""
    if field.annotation is bool:
        return f" [default: {'on' if field.default else 'off'}]"
    value = field.get_default(call_default_factory=True, validated_data={})
    shown = value.get_secret_value() if isinstance(value, SecretStr) else value
    return "" if shown in (None, "") else f" [default: {shown}]"


def _options() -> inspect.Signature:
    """Return a signature with an option for each setting."""
    parameters = [
        inspect.Parameter(
            "config",
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[
                Path | None, typer.Option(metavar="FILE", help="A TOML file of settings.")
            ],
        )
    ]
    for name, field in Settings.model_fields.items():
        kind = bool | None if field.annotation is bool else str | None
        text = f"{field.description}{_default(field)}".replace("[", "\\[")
        metavar = None if kind == bool | None else _metavar(name, field)
        option = typer.Option(
            help=text, show_default=False, metavar=metavar, rich_help_panel=_panel(name)
        )
        parameters.append(
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=None,
                annotation=Annotated[kind, option],
            )
        )
    return inspect.Signature(parameters)


_signature = _options()
serve.__signature__ = _signature  # type: ignore[attr-defined]
serve.__annotations__ = {each.name: each.annotation for each in _signature.parameters.values()}
