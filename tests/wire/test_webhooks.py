"""Webhooks as they are kept."""

from datetime import UTC, datetime

from comity.wire.events import Severity
from comity.wire.webhooks import Place, State, Subscription

NOW = datetime(2026, 7, 28, 12, tzinfo=UTC)


def test_a_subscription_begins_active_and_shows_no_secret() -> None:
    found = Subscription(
        *("sub_1", "agent:ci", "key:1", "https://hooks.example.org/?token=s3cret", "tool.*"),
        *(Severity.INFO, NOW, None, (b"sealed secret",)),
    )
    assert found.state is State.ACTIVE
    assert repr(found) == "Subscription('sub_1' of 'agent:ci')"


def test_a_place_is_named_as_its_host_expects() -> None:
    assert Place("https", "::1", 8443, "/", is_named=True).origin == "https://[::1]:8443"
    assert Place("http", "127.0.0.1", 80, "/", is_named=True).authority == "127.0.0.1"
