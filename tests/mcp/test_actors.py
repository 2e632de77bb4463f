"""Credentials of principals do not show their secrets."""

from comity.identity.principals import ApiKey


def test_a_key_shows_neither_its_mac_nor_what_it_may_do() -> None:
    shown = repr(ApiKey("k1", "agent:ci", b"secret-mac", permissions=("AdminWrite",)))
    assert shown == "Key('k1' of 'agent:ci')"
