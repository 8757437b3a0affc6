"""The variables above the panels."""

from typing import Final

from deploy.grafana.panels import Variable

#: A server.
INSTANCE: Final = Variable("instance", "Server", "label_values(pidlease_build_info, instance)")
#: A server in front of Kafka.
IN_FRONT: Final = Variable(
    "instance", "Server", 'label_values(pidlease_build_info{log="kafka"}, instance)', narrow=True
)
#: A topic.
TOPIC: Final = Variable(
    "topic",
    "Topic",
    'label_values(pidlease_batches_judged_total{instance=~"$instance"}, topic)',
)
