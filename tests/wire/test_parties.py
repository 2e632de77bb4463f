"""Who takes part, as it is kept and as it is known in one request."""

from comity.wire.parties import LOCAL, NOBODY, Actor, Key, Party, PartyKind


def test_a_party_is_an_agent_unless_said_otherwise() -> None:
    assert Party("agent:ci").kind is PartyKind.AGENT
    assert Actor("agent:ci").kind is PartyKind.AGENT


def test_nobody_has_a_name_that_no_grant_can_have() -> None:
    assert NOBODY.party == ""
    assert LOCAL.party


def test_a_credential_is_bound_to_nothing_unless_said_otherwise() -> None:
    assert Actor("agent:ci").permissions is None


def test_a_key_shows_neither_its_mac_nor_what_it_may_do() -> None:
    shown = repr(Key("k1", "agent:ci", b"secret-mac", permissions=("AdminWrite",)))
    assert shown == "Key('k1' of 'agent:ci')"
