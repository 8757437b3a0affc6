"""The dashboards' common variables."""

from typing import Final

from deploy.grafana.panels import Variable

INSTANCE: Final = Variable("instance", "Server", "label_values(pidlease_build_info, instance)")
#: Servers with Kafka as the log.
IN_FRONT: Final = Variable(
    "instance", "Server", 'label_values(pidlease_build_info{log="kafka"}, instance)', narrow=True
)
TOPIC: Final = Variable(
    "topic",
    "Topic",
    'label_values(pidlease_batches_judged_total{instance=~"$instance"}, topic)',
)
