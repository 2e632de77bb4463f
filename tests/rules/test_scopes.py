"""How far a live server may reach, however it is written. (MCPL §7, D-62, D-63)"""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from comity.rules.paths import Ruling
from comity.rules.scopes import (
    LONGEST_LABEL,
    MOST_LEAVES,
    claimed,
    found_at,
    is_allowed,
    normal,
    readings,
    ruled,
    scope_of,
    strictest,
    strings_in,
)
from comity.wire.features import Bounds, Scope

BOUNDS = Bounds(("/project/**", "/tmp/*", "#general", "#dev-*"), ("**/.env", "**/secrets/**"))
PARTS = st.sampled_from(
    ["project", "etc", "..", ".", "", "a", ".env", "secrets", "%2e%2e", "..\\..", "%252e%252e"]
)


@pytest.mark.parametrize(
    ("label", "ruling"),
    [
        ("/project/src/main.ts", Ruling.ALLOWED),
        ("/project//src/./main.ts", Ruling.ALLOWED),
        ("/project/a/../b", Ruling.ALLOWED),
        ("#general", Ruling.ALLOWED),
        ("#dev-ops", Ruling.ALLOWED),
        ("/project/.env", Ruling.DENIED),
        ("/project/.ENV", Ruling.DENIED),
        ("/project/x/../.env", Ruling.DENIED),
        ("/project/secrets", Ruling.DENIED),
        ("/project/%2eenv", Ruling.DENIED),
        ("/project/.\N{FULLWIDTH LATIN SMALL LETTER E}nv", Ruling.DENIED),
        ("/project/.e\N{ZERO WIDTH SPACE}nv", Ruling.DENIED),
        ("\\project\\.env", Ruling.DENIED),
        ("../../project/.env", Ruling.DENIED),
        ("/" + "x" * LONGEST_LABEL, Ruling.DENIED),
        ("/etc/hosts", Ruling.OUTSIDE),
        ("/project/../etc/hosts", Ruling.OUTSIDE),
        ("/project/..\\..\\etc/hosts", Ruling.OUTSIDE),
        ("/project/%2e%2e/etc/hosts", Ruling.OUTSIDE),
        ("/project/%252e%252e/etc/hosts", Ruling.OUTSIDE),
        ("/etc/x\\..\\..\\..\\project/y", Ruling.OUTSIDE),
        ("/tmp/a/b", Ruling.OUTSIDE),
        ("project/a", Ruling.OUTSIDE),
        ("#admin-x", Ruling.OUTSIDE),
        ("", Ruling.OUTSIDE),
    ],
)
def test_a_label_is_ruled_by_every_way_of_reading_it(label: str, ruling: Ruling) -> None:
    assert ruled(label, BOUNDS) is ruling


def test_without_bounds_everything_is_to_be_asked_but_what_others_deny() -> None:
    assert ruled("/project/x", None) is Ruling.OUTSIDE
    assert ruled("/project/x", None, ["/project/**"]) is Ruling.DENIED


def test_a_way_up_and_out_is_within_nothing_and_denied_wherever_it_may_lead() -> None:
    assert not is_allowed("../x", ["**"])
    assert not is_allowed("..", ["**"])
    assert ruled("../../etc/passwd", Bounds(("**",), ("/etc/**",))) is Ruling.DENIED


@given(st.lists(PARTS, max_size=8))
@example(["project", "..", "etc"])
def test_no_way_up_escapes_from_what_is_allowed(parts: list[str]) -> None:
    """A reader that takes each way up ends where the pattern let it, whatever it unescapes."""
    label = "/" + "/".join(parts)
    if is_allowed(label, ["/project/**"]):
        for each in readings(label):
            assert each == "/project" or each.startswith("/project/")


@given(st.lists(PARTS, max_size=8), st.booleans())
def test_what_is_normal_stays_so_and_has_no_way_up_amid_it(parts: list[str], rooted: bool) -> None:
    found = normal(("/" if rooted else "") + "/".join(parts))
    assert normal(found) == found
    ways_up = [place for place, part in enumerate(found.split("/")) if part == ".."]
    assert ways_up == list(range(len(ways_up)))
    assert not (rooted and "/" in found and ways_up and found.startswith("/"))


@pytest.mark.parametrize(
    ("label", "payload", "ruling"),
    [
        ("/project/a", {"path": "/project/a"}, Ruling.ALLOWED),
        ("/project/a", {"path": "/project//b/../a", "mode": "append"}, Ruling.ALLOWED),
        ("#general", {"channel": "#general"}, Ruling.ALLOWED),
        # What D-62 is about: the label says one thing, and the server does another.
        ("/project/a", {}, Ruling.OUTSIDE),
        ("/project/a", {"path": "/etc/hosts"}, Ruling.OUTSIDE),
        ("/project/a", {"path": "/etc/hosts", "note": "/project/a"}, Ruling.OUTSIDE),
        ("/project/a", {"path": ["/project/a", "~/x"]}, Ruling.OUTSIDE),
        ("/project/a", {"path": "/project/.env"}, Ruling.DENIED),
        ("/project/a", {"/project/.env": 1, "path": "/project/a"}, Ruling.DENIED),
        ("/project/.env", {"path": "/project/.env"}, Ruling.DENIED),
        ("/etc/hosts", {"path": "/etc/hosts"}, Ruling.OUTSIDE),
        ("/project/a", {"x": ["y"] * (MOST_LEAVES + 2)}, Ruling.DENIED),
        ("/project/a", {"x": "z" * (LONGEST_LABEL + 1)}, Ruling.DENIED),
    ],
)
def test_a_servers_own_words_allow_only_what_the_payload_names_too(
    label: str, payload: dict[str, object], ruling: Ruling
) -> None:
    assert claimed(Scope(label, payload), BOUNDS) is ruling


def test_texts_that_lie_too_deep_are_not_looked_for() -> None:
    deep: object = "x"
    for _ in range(20):
        deep = [deep]
    assert strings_in(deep) is None
    assert strings_in({"a": ["b", 1, None, {"c": True}]}) is not None


@pytest.mark.parametrize(
    ("pointer", "found"),
    [
        ("/path", ("/x",)),
        ("/in/1/at", ("/y",)),
        ("/several", ("/a", "/b")),
        ("/a~1b", ("slash",)),
        ("/a~0b", ("tilde",)),
        ("/number", ()),
        ("/in/7/at", ()),
        ("/in/one", ()),
        ("/nothing/there", ()),
        ("/mixed", ()),
    ],
)
def test_a_pointer_leads_to_the_scope_in_the_arguments(
    pointer: str, found: tuple[str, ...]
) -> None:
    arguments = {
        "path": "/x",
        "in": [{}, {"at": "/y"}],
        "several": ["/a", "/b"],
        "a/b": "slash",
        "a~b": "tilde",
        "number": 1,
        "mixed": ["/a", 1],
    }
    assert found_at(arguments, pointer) == found


def test_the_scope_of_a_call_is_what_its_arguments_say() -> None:
    assert scope_of({"path": "/a/../b"}, "/path") == Scope("/b", {"path": "/a/../b"})
    assert scope_of({"to": ["/a", "/b"]}, "/to") == Scope("/a, /b", {"to": ["/a", "/b"]})
    assert scope_of({}, "/path") is None


def test_of_several_places_the_strictest_counts() -> None:
    assert strictest([Ruling.ALLOWED, Ruling.OUTSIDE, Ruling.DENIED]) is Ruling.DENIED
    assert strictest([Ruling.ALLOWED, Ruling.OUTSIDE]) is Ruling.OUTSIDE
    assert strictest([]) is Ruling.ALLOWED
