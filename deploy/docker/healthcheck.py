"""Ask the server of this container whether it lives; exit code 0: it does.

It asks /healthz: a server that stands by, or replays its log, lives too. /readyz says more. The
server's settings come from variables of the container: a file of settings is not read here.
"""

import http.client
import os
import ssl
import sys

host, _, port = os.environ.get("PIDLEASE_HTTP_LISTEN", "127.0.0.1:8080").rpartition(":")
host = host.strip("[]")
if host in ("", "0.0.0.0", "::"):  # noqa: S104 - compared
    host = "127.0.0.1"
if "SSL" in os.environ.get("PIDLEASE_HTTP_SECURITY_PROTOCOL", ""):
    # It asks its own container: there is no certificate to compare with.
    context = ssl._create_unverified_context()  # noqa: S323
    connection: http.client.HTTPConnection = http.client.HTTPSConnection(
        host, int(port), timeout=5, context=context
    )
else:
    connection = http.client.HTTPConnection(host, int(port), timeout=5)
try:
    connection.request("GET", "/healthz")
    status = connection.getresponse().status
except OSError as error:
    sys.exit(f"{host}:{port} does not answer: {error}")
sys.exit(0 if status == http.client.OK else f"/healthz answered {status}")
