"""The settings `[webhooks]`: events that Comity posts to subscribers."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from comity.config.fields import COUNT, number_type, setting, text_list_type
from comity.events.webhooks.model import AllowedHosts
from comity.toolkit.resilience import RetrySchedule

_HOSTS: Final = text_list_type(
    r"\.?[A-Za-z0-9._-]+|\[?[0-9A-Fa-f:.]+\]?", "hooks.internal, or .internal for all below it"
)
_PORTS: Final = text_list_type(r"[0-9]{1,5}", '"8443"')
_AT_ONCE: Final = number_type(1, 10_000)


@dataclass(frozen=True, slots=True)
class WebhookSettings:
    allow_hosts: tuple[str, ...] = setting(
        (), "Hosts that are not public or have no TLS, and to which Comity posts even so.", _HOSTS
    )
    ports: tuple[str, ...] = setting(
        ("443", "8443"), "The ports of other hosts to which Comity posts.", _PORTS
    )
    lasts: timedelta = setting(
        timedelta(days=30), "How long a subscription lasts that nobody renews."
    )
    most: int = setting(10_000, "The number of subscriptions.", COUNT)
    most_of_one: int = setting(20, "The number of them of one principal.", COUNT)
    most_waiting: int = setting(
        10_000, "The number of events that may wait for one subscriber.", COUNT
    )
    deadline: timedelta = setting(timedelta(seconds=10), "How long one post may take.")
    first_retry: timedelta = setting(
        timedelta(seconds=5), "The wait before Comity tries a post again; it doubles."
    )
    longest_retry: timedelta = setting(
        timedelta(hours=1), "The longest wait before Comity tries a post again."
    )
    retry_for: timedelta = setting(
        timedelta(days=3), "How long Comity tries to post an event before it counts as failed."
    )
    disable_after: timedelta = setting(
        timedelta(days=5), "How long a subscriber may fail before Comity stops posting to it."
    )
    at_once: int = setting(64, "The number of posts at once.", _AT_ONCE)
    at_once_place: int = setting(4, "The number of them to one host.", _AT_ONCE)

    @property
    def places(self) -> AllowedHosts:
        hosts = frozenset(host.strip("[]").casefold() for host in self.allow_hosts)
        return AllowedHosts(hosts, frozenset(map(int, self.ports)))

    @property
    def schedule(self) -> RetrySchedule:
        return RetrySchedule(self.first_retry, self.longest_retry, give_up_after=self.retry_for)
