"""`servers/sandbox/egress_rules.py`: the grammar of reaches, and what they grant."""

import pytest

from comity.errors import Misconfigured
from comity.servers.sandbox.egress_rules import (
    EgressRules,
    EgressTarget,
    is_of_this_machine,
    parse_reach,
)
from tests.support.cases import loop_over


@loop_over(
    ("text", "host", "port", "is_wildcard"),
    [
        ("api.example.com:443", "api.example.com", 443, False),
        ("api.example.com", "api.example.com", 443, False),
        ("API.Example.COM.:8443", "api.example.com", 8443, False),
        ("*.example.com:443", "example.com", 443, True),
        ("*.example.com", "example.com", 443, True),
        ("10.0.0.5:8080", "10.0.0.5", 8080, False),
        ("127.0.0.1:80", "127.0.0.1", 80, False),
        ("169.254.169.254:80", "169.254.169.254", 80, False),
        ("[::1]:80", "::1", 80, False),
        ("[::1]", "::1", 443, False),
        ("[2001:DB8:0:0::1]:80", "2001:db8::1", 80, False),
        ("bücher.example:443", "xn--bcher-kva.example", 443, False),
        ("BÜCHER.example", "xn--bcher-kva.example", 443, False),
        ("*.bücher.example", "xn--bcher-kva.example", 443, True),
        ("xn--bcher-kva.example", "xn--bcher-kva.example", 443, False),
        ("_dns.example.com:53", "_dns.example.com", 53, False),
    ],
)
def test_a_reach_is_read_in_its_usual_form(
    text: str, host: str, port: int, is_wildcard: bool
) -> None:
    assert parse_reach(text) == (EgressTarget(host, port), is_wildcard)


@loop_over(
    "text",
    [
        *("", "**", "*:443", "*.com", "*.*.example.com", "a*.example.com", "api.*.com"),
        *("*.10.0.0.5:80", "*.[::1]:80", "*.localhost.localdomain:80", "*.nip.io"),
        *("api.example.com:", "api.example.com:0", "api.example.com:65536", "api.example.com:+1"),
        *("api.example.com:080", "api.example.com:https", "api.example.com:443:443"),
        *("https://api.example.com", "api.example.com/path", "me@api.example.com"),
        *("api.example.com:443/", "api example.com", " api.example.com", "api.example.com\n"),
        *("api..example.com", ".example.com", "-api.example.com", "api-.example.com"),
        *("a" * 64 + ".example.com", "a." * 130 + "com", "api%2eexample.com", "api\\.example.com"),
        *("127.1:80", "2130706433:80", "0x7f.0.0.1:80", "010.0.0.5:80", "10.0.0.5.:80"),
        *("10.0.0.256:80", "example.123:80", "::1", "::1:80", "[::1", "[::1%lo]:80", "[fe80::1%1]"),
        *("[::ffff:10.0.0.5]:80", "0.0.0.0:80", "[::]:80", "224.0.0.1:80", "255.255.255.255:80"),
        *("localhost:80", "db:5432", "printer.local:80", "metadata.google.internal:80"),
        *("10.0.0.5.nip.io:80", "faß.example", "\uff41pi.example.com", "api\u3002example.com"),
        *(
            "api\u200b.example.com",
            "api.example.com\0",
            "10.0.0.0/8:80",
            "api.example.com,b.example",
        ),
    ],
)
def test_nonsense_is_refused_with_a_message_that_names_it(text: str) -> None:
    with pytest.raises(Misconfigured) as refused:
        EgressRules([text])
    shown = ascii(text)[1:-1][:100]
    assert f"'{shown}' cannot be granted: " in str(refused.value)


@loop_over(
    ("host", "port", "is_granted"),
    [
        ("api.example.com", 443, True),
        ("api.example.com", 80, False),
        ("example.com", 443, False),
        ("x.api.example.com", 443, False),
        ("a.example.org", 443, True),
        ("example.org", 443, False),
        ("a.b.example.org", 443, False),
        ("evilexample.org", 443, False),
        ("10.0.0.5", 8080, True),
        ("10.0.0.5", 443, False),
        ("0.0.5", 8080, False),
        ("::1", 80, True),
    ],
)
def test_a_grant_covers_its_own_targets_only(host: str, port: int, is_granted: bool) -> None:
    rules = EgressRules(["api.example.com", "*.example.org:443", "10.0.0.5:8080", "[::1]:80"])
    assert rules.is_granted(EgressTarget(host, port)) == is_granted


@loop_over(
    ("own", "host", "addresses"),
    [
        (("127.0.0.1", 80), "127.0.0.1", ["127.0.0.1"]),
        (("127.0.0.1", 80), "127.9.9.9", ["127.9.9.9"]),
        (("0.0.0.0", 80), "::1", ["::1"]),
        (("[::1]", 80), "127.0.0.1", ["127.0.0.1"]),
        (("93.184.216.34", 80), "api.example.com", ["93.184.216.34"]),
        (("Gateway.Example.com", 80), "gateway.example.com", ["93.184.216.34"]),
        (("gateway.example.com", 80), "gateway.example.com", []),
    ],
)
def test_the_gateways_own_addresses_are_refused_at_its_port(
    own: tuple[str, int], host: str, addresses: list[str]
) -> None:
    rules = EgressRules([], lambda: [own])
    assert "address of the gateway" in (
        rules.address_problem(EgressTarget(host, 80), addresses) or ""
    )
    assert "gateway" not in (rules.address_problem(EgressTarget(host, 81), addresses) or "")


def test_a_private_address_is_reached_as_an_address_and_not_through_a_name() -> None:
    rules = EgressRules([])
    assert rules.address_problem(EgressTarget("10.0.0.5", 80), ["10.0.0.5"]) is None
    assert rules.address_problem(EgressTarget("api.example.com", 80), ["10.0.0.5"])
    assert rules.address_problem(EgressTarget("api.example.com", 80), ["93.184.216.34"]) is None


def test_the_addresses_of_this_machine_are_known() -> None:
    assert is_of_this_machine("127.0.0.1")
    assert is_of_this_machine("127.1.2.3")
    assert not is_of_this_machine("93.184.216.34")
    assert not is_of_this_machine("no address")


def test_a_star_grants_every_name_at_every_port_and_no_address() -> None:
    rules = EgressRules(["*"], lambda: [("127.0.0.1", 2664)])
    for text in ("a.example:443", "b.example:8080"):
        target = EgressTarget.parse(text)
        assert target is not None
        assert rules.is_granted(target)
        assert rules.address_problem(target, ["10.0.0.1"]) is not None
    for text in ("8.8.8.8:443", "127.0.0.1:2664", "[::1]:443"):
        target = EgressTarget.parse(text)
        assert target is not None
        assert not rules.is_granted(target)
