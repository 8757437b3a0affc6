"""What identifies a request of Kafka's protocol, and who sends it."""

from typing import Final

#: The client id that pidlease's own requests carry.
CLIENT_ID: Final = "pidlease"
