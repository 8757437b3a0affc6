"""The dashboards, one in each module."""

from typing import Final

from deploy.grafana.boards.copying import COPYING
from deploy.grafana.boards.fencing import FENCING
from deploy.grafana.boards.leases import LEASES
from deploy.grafana.boards.log import LOG
from deploy.grafana.boards.overview import OVERVIEW
from deploy.grafana.boards.upstream import UPSTREAM

#: All dashboards, the overview first.
BOARDS: Final = (OVERVIEW, LEASES, FENCING, LOG, UPSTREAM, COPYING)
