"""The sender's address behind proxies: the rightmost that no trusted proxy has."""

from hypothesis import given
from hypothesis import strategies as st

from comity.http.trusted_proxies import MAX_HOPS, TrustedProxies
from tests.support.cases import loop_over

TRUSTED = TrustedProxies(["10.0.0.0/8", "2001:db8:1::/48", "127.0.0.1"])
PEER = "10.0.0.1"


def listed(*lines: str) -> list[tuple[bytes, bytes]]:
    return [(b"x-forwarded-for", line.encode("latin-1")) for line in lines]


def stated(*lines: str) -> list[tuple[bytes, bytes]]:
    return [(b"forwarded", line.encode("latin-1")) for line in lines]


@loop_over(
    ("written", "sender"),
    [
        ([], PEER),
        (listed("198.51.100.7"), "198.51.100.7"),
        (listed("203.0.113.9, 198.51.100.7"), "198.51.100.7"),
        (listed("198.51.100.7, 10.0.0.9"), "198.51.100.7"),
        (listed("203.0.113.9", "198.51.100.7"), "198.51.100.7"),
        (listed("198.51.100.7", "10.0.0.9"), "198.51.100.7"),
        (listed("10.0.0.8, 10.0.0.9"), "10.0.0.8"),
        (listed("198.51.100.7:4711"), "198.51.100.7"),
        (listed("[2001:db8::7]:4711"), "2001:db8::7"),
        (listed("2001:db8::7"), "2001:db8::7"),
        (listed("::ffff:198.51.100.7"), "198.51.100.7"),
        (listed("198.51.100.7, unknown"), PEER),
        (listed("198.51.100.7, unknown, 10.0.0.9"), "10.0.0.9"),
        (listed("198.51.100.7,"), PEER),
        (listed(""), PEER),
        (listed("1" * 5000), PEER),
        (listed(", ".join(["198.51.100.7", *["10.0.0.9"] * MAX_HOPS])), "10.0.0.9"),
        (stated("for=198.51.100.7"), "198.51.100.7"),
        (stated('For="[2001:db8::7]:4711";proto=https'), "2001:db8::7"),
        (stated("for=203.0.113.9, proto=http;for=198.51.100.7;by=10.0.0.1"), "198.51.100.7"),
        (stated('for="', "for=198.51.100.7"), "198.51.100.7"),
        (stated("for=_hidden"), PEER),
        (stated("for=198.51.100.7;for=203.0.113.9"), PEER),
        (stated("proto=https"), PEER),
        (listed("198.51.100.7") + stated("for=198.51.100.7"), "198.51.100.7"),
        (listed("198.51.100.7") + stated("for=203.0.113.9"), PEER),
        ([(b"x-real-ip", b"203.0.113.9")], PEER),
    ],
)
def test_a_trusted_proxy_names_the_sender(written: list[tuple[bytes, bytes]], sender: str) -> None:
    assert TRUSTED.sender(PEER, written) == sender


@loop_over("peer", ["198.51.100.7", "2001:db8:2::1", "", "unix:", "10.0.0.1.evil"])
def test_nobody_else_names_anybody(peer: str) -> None:
    assert TRUSTED.sender(peer, listed("203.0.113.9")) == peer
    assert TrustedProxies().sender(PEER, listed("203.0.113.9")) == PEER


def test_an_address_in_another_form_is_the_same_proxy() -> None:
    assert TRUSTED.trusts("::ffff:10.2.3.4")
    assert TRUSTED.trusts("2001:db8:1::5")
    assert not TRUSTED.trusts("2001:db8:2::5")


@given(st.binary(max_size=200), st.sampled_from([b"x-forwarded-for", b"forwarded"]))
def test_no_header_is_ever_a_crash(value: bytes, name: bytes) -> None:
    assert TRUSTED.sender(PEER, [(name, value)])
