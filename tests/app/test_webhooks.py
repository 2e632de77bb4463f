"""Webhooks as the settings say, and who hears by one."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from comity.app.webhooks import options_of, recognised_by
from comity.config import Settings
from comity.kernel.identity import Identity
from comity.wire.events import Severity
from comity.wire.parties import LOCAL, Key, Party, PartyKind
from comity.wire.webhooks import Subscription
from tests.surfaces.credentials import GivenOut

NOW = datetime(2026, 7, 28, 12, tzinfo=UTC)
ONE = Subscription(
    *("sub_1", "agent:ci", "key:k1", "https://hooks.example.org/", "*", Severity.DEBUG, NOW, None)
)


def test_what_operators_wrote_is_what_holds() -> None:
    options = options_of(
        Settings(
            webhook_hosts=("Hooks.Internal", "[::1]"),
            webhook_ports=("443", "9443"),
            webhook_first_retry=timedelta(seconds=1),
            webhook_retry_for=timedelta(hours=1),
        )
    )
    assert options.places.hosts == {"hooks.internal", "::1"}
    assert options.places.ports == {443, 9443}
    assert options.schedule.again.first == timedelta(seconds=1)
    assert options.schedule.span == timedelta(hours=1)
    assert options_of(Settings()).deadline == timedelta(seconds=10)


def test_who_hears_would_still_be_let_in() -> None:
    given_out = GivenOut()
    identity = Identity(given_out.register)
    recognise = recognised_by(identity)
    assert recognise(ONE) is None, "nobody knows the party"
    given_out.parties["agent:ci"] = Party("agent:ci")
    given_out.keys["k1"] = Key("k1", "agent:ci", b"mac")
    found = recognise(ONE)
    assert found is not None
    assert found.party == "agent:ci"
    given_out.keys["k1"] = Key("k1", "agent:ci", b"mac", revoked_at=NOW)
    assert recognise(ONE) is None
    by_token = replace(ONE, credential="token", party="person:ana@example.org")
    known = recognise(by_token)
    assert known is not None
    assert known.kind is PartyKind.PERSON
    given_out.parties[by_token.party] = Party(by_token.party, disabled=True)
    assert recognise(by_token) is None


def test_the_local_user_hears_while_the_gateway_is_local() -> None:
    local = replace(ONE, credential=LOCAL.credential, party=LOCAL.party)
    register = GivenOut().register
    assert recognised_by(Identity(register, is_local=True))(local) is LOCAL
    assert recognised_by(Identity(register))(local) is None
