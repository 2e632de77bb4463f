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
    subscription_ttl: timedelta = setting(
        timedelta(days=30), "How long a subscription lasts without renewal."
    )
    max_subscriptions: int = setting(10_000, "Maximum subscriptions.", COUNT)
    max_subscriptions_per_principal: int = setting(
        20, "Maximum subscriptions of one principal.", COUNT
    )
    max_queued_events: int = setting(
        10_000, "The number of events that may wait for one subscriber.", COUNT
    )
    timeout: timedelta = setting(timedelta(seconds=10), "How long one post may take.")
    retry_delay: timedelta = setting(
        timedelta(seconds=5), "The wait before Comity tries a post again; it doubles."
    )
    max_retry_delay: timedelta = setting(
        timedelta(hours=1), "The longest wait before Comity tries a post again."
    )
    retry_for: timedelta = setting(
        timedelta(days=3), "How long Comity tries to post an event before it counts as failed."
    )
    disable_after: timedelta = setting(
        timedelta(days=5), "How long a subscriber may fail before Comity stops posting to it."
    )
    max_concurrent: int = setting(64, "Maximum concurrent posts.", _AT_ONCE)
    max_concurrent_per_host: int = setting(4, "Maximum concurrent posts to one host.", _AT_ONCE)

    @property
    def places(self) -> AllowedHosts:
        hosts = frozenset(host.strip("[]").casefold() for host in self.allow_hosts)
        return AllowedHosts(hosts, frozenset(map(int, self.ports)))

    @property
    def schedule(self) -> RetrySchedule:
        return RetrySchedule(self.retry_delay, self.max_retry_delay, give_up_after=self.retry_for)
