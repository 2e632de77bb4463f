"""What an address is in any of its forms, and which of them are public."""

import ipaddress

from hypothesis import given
from hypothesis import strategies as st

from comity.validation.network import (
    answers_problem,
    host_problem,
    is_public,
    parse_address,
    plain_host,
)
from tests.support.cases import loop_over


@loop_over(
    "text",
    ["127.0.0.1", "127.1", "2130706433", "0x7f000001", "0177.0.0.1", "017700000001", "383.0.0.1"],
)
def test_every_form_of_an_address_is_the_same_address(text: str) -> None:
    assert parse_address(text) == ipaddress.ip_address("127.0.0.1")


@loop_over("text", ["", "a.b", "1.2.3.4.5", "1..2", "::1::", "[::1", "1.2.x.4"])
def test_what_is_no_address_is_none(text: str) -> None:
    assert parse_address(text) is None


@given(st.ip_addresses(v=4))
def test_no_private_address_of_version_four_is_public(found: ipaddress.IPv4Address) -> None:
    if found.is_private or found.is_multicast or found.is_reserved or found.is_loopback:
        assert not is_public(found)
    mapped = ipaddress.IPv6Address(f"::ffff:{found}")
    assert is_public(mapped) == is_public(found)


@given(st.ip_addresses(v=6))
def test_of_version_six_only_what_is_given_out_is_public(found: ipaddress.IPv6Address) -> None:
    if found.ipv4_mapped is None and found not in ipaddress.ip_network("2000::/3"):
        assert not is_public(found)


def test_a_leading_zero_is_read_in_both_ways() -> None:
    # To one reader 10.0.0.1, to another 8.0.0.1.
    assert host_problem("010.0.0.1")[0] is not None
    assert host_problem("08.8.8.8") == (None, "")


def test_a_name_is_told_as_a_resolver_is_asked_for_it() -> None:
    assert host_problem("Bücher.Example.org.") == (None, "xn--bcher-kva.example.org")
    assert plain_host("exa mple.org") is None
    assert plain_host("a" * 2000) is None


def test_one_bad_answer_refuses_a_name() -> None:
    assert answers_problem(["93.184.216.34"]) is None
    assert answers_problem(["93.184.216.34", "10.0.0.1"]) is not None
    assert answers_problem([]) == "its host cannot be resolved"
