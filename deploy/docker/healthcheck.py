"""Ask the server of this container whether it lives; exit code 0: it does.

It asks /healthz: a server that stands by, or replays its log, lives too. /readyz says more. The
address comes from the container's variables: a file of settings is not read here. Whether it is by
TLS is found out, since that may stand in the file alone.
"""

import http.client
import os
import ssl
import sys

host, _, port = os.environ.get("PIDLEASE_HTTP_LISTEN", "127.0.0.1:8080").rpartition(":")
host = host.strip("[]")
if host in ("", "0.0.0.0", "::"):  # noqa: S104 - compared
    host = "127.0.0.1"


def ask(connection: http.client.HTTPConnection) -> str:
    """Ask the server; return why it is not well, empty: it is."""
    try:
        connection.request("GET", "/healthz")
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        return f"{host}:{port} does not answer: {type(error).__name__}: {error}"
    return "" if status == http.client.OK else f"/healthz answered {status}"


# It asks its own container: there is no certificate to compare with.
context = ssl._create_unverified_context()  # noqa: S323
connections = [
    http.client.HTTPSConnection(host, int(port), timeout=4, context=context),
    http.client.HTTPConnection(host, int(port), timeout=4),
]
if "SSL" not in os.environ.get("PIDLEASE_HTTP_SECURITY_PROTOCOL", ""):
    connections.reverse()
problems = []
for each in connections:
    problems.append(ask(each))
    if not problems[-1]:
        sys.exit(0)
sys.exit(problems[0])
