"""TLS and SASL of the commands' connections to a Kafka listener.

They come from the environment, as user and password do for HTTP: a command's options stand in lists
of processes.
"""

import os
import ssl
from typing import Any, Final

from pidlease.kafka.client.connection_security import ConnectionSecurity
from proxy.cli.console import cannot_run
from proxy.cli.http_client import PASSWORD_VARIABLE, USER_VARIABLE

PROTOCOL_VARIABLE: Final = "PIDLEASE_SECURITY_PROTOCOL"
MECHANISM_VARIABLE: Final = "PIDLEASE_SASL_MECHANISM"


def security_options() -> dict[str, Any]:
    """Return the environment's TLS and SASL by aiokafka's names; end the command if invalid.

    The authority of the server's certificate comes from SSL_CERT_FILE, which openssl reads.
    """
    protocol = os.environ.get(PROTOCOL_VARIABLE, "PLAINTEXT").upper()
    user, password = (os.environ.get(each) for each in (USER_VARIABLE, PASSWORD_VARIABLE))
    if protocol.startswith("SASL") and (not user or password is None):
        raise cannot_run(
            f"{PROTOCOL_VARIABLE} is {protocol}: {USER_VARIABLE} and {PASSWORD_VARIABLE} are needed"
        )
    options: dict[str, Any] = {
        "security_protocol": protocol,
        "ssl_context": ssl.create_default_context() if protocol.endswith("SSL") else None,
        "sasl_mechanism": os.environ.get(MECHANISM_VARIABLE, "SCRAM-SHA-512").upper(),
        "sasl_plain_username": user,
        "sasl_plain_password": password,
    }
    if problem := ConnectionSecurity(**options).security_problem:
        names = {"security_protocol": PROTOCOL_VARIABLE, "sasl_mechanism": MECHANISM_VARIABLE}
        for name, variable in names.items():
            problem = problem.replace(name, variable)
        raise cannot_run(problem)
    return options


def connection_security() -> ConnectionSecurity:
    """Return the environment's TLS and SASL; end the command if they are invalid."""
    return ConnectionSecurity(**security_options())
