"""For which of our addresses a token was meant."""

from comity.identity.authentication import is_within, paths_for
from tests.support.cases import loop_over

GATEWAY = "https://gw.example.org"


@loop_over(
    ("named", "paths"),
    [
        ([GATEWAY], ("",)),
        ([f"{GATEWAY}/"], ("",)),
        ([f"{GATEWAY}/mcp"], ("/mcp",)),
        (["https://other.org", f"{GATEWAY}/servers/a/mcp"], ("/servers/a/mcp",)),
        ([f"{GATEWAY}.evil.org/mcp"], ()),
        ([f"{GATEWAY}:8443"], ()),
        (["http://gw.example.org"], ()),
        (["https://GW.example.org"], ()),
        (["https://example.org"], ()),
        ([""], ()),
        ([], ()),
    ],
)
def test_a_token_counts_for_what_it_names_of_us(named: list[str], paths: tuple[str, ...]) -> None:
    assert paths_for(named, GATEWAY) == paths


def test_a_name_that_is_no_address_has_no_parts() -> None:
    assert paths_for(["comity"], "comity") == ("",)
    assert paths_for(["comity/mcp"], "comity") == ()


@loop_over(
    ("path", "places", "within"),
    [
        ("/mcp", ("",), True),
        ("/mcp", ("/mcp",), True),
        ("/mcp/x", ("/mcp",), True),
        ("/mcp2", ("/mcp",), False),
        ("/api/status", ("/mcp",), False),
        ("/servers/a/mcp", ("/mcp", "/servers/a"), True),
        ("/mcp", (), False),
    ],
)
def test_a_place_holds_what_is_below_it(path: str, places: tuple[str, ...], within: bool) -> None:
    assert is_within(path, places) is within
