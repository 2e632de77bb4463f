"""What may stand in a grant, and the form in which it is kept."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comity.rules import granting
from comity.wire.errors import INVALID_PARAMS, MalformedMessage


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ("files", "files/*"),
        ("files/*", "files/*"),
        ("files/read", "files/read"),
        ("files__read", "files/read"),
        ("files__read__all", "files/read__all"),
        ("files/read__all", "files/read__all"),
        ("*", "*"),
        ("*/*", "*"),
        ("*/search", "*/search"),
        ("team.*/read_*", "team.*/read_*"),
        ("files/file:///docs/a b", "files/file:///docs/a b"),
    ],
)
def test_a_target_is_kept_in_one_form(written: str, kept: str) -> None:
    assert granting.target(written) == kept
    assert granting.target(kept) == kept


NO_TARGETS = ("", "/", "files/", "/read", " files", "fi les/read", "\u00fcnder/x", "__x", "files__")


@pytest.mark.parametrize(
    "written",
    [
        *NO_TARGETS,
        "a" * 65,
        "files/a\0b",
        "f" * 1001,
        "files/\n",
        "-x/y",
        "a/" + "*a" * 9,
        "f/\ud800",
    ],
)
def test_a_target_that_nobody_could_mean_is_refused(written: str) -> None:
    with pytest.raises(MalformedMessage) as refused:
        granting.target(written)
    assert refused.value.fault is INVALID_PARAMS


@pytest.mark.parametrize("written", ["network.outbound", "*", "com.example.thing", "filesystem.*"])
def test_what_a_server_is_permitted_is_a_name_of_its_own(written: str) -> None:
    assert granting.target(written, of="perm") == written


@pytest.mark.parametrize("written", ["", " x", "x ", "a\tb"])
def test_a_permission_without_a_name_is_refused(written: str) -> None:
    with pytest.raises(MalformedMessage):
        granting.target(written, of="perm")


@pytest.mark.parametrize("written", ["agent:ci", "*", "person:ana@example.org", "agent.x", "A b"])
def test_a_subject_is_one_party_or_everybody(written: str) -> None:
    assert granting.subject(written) == written


@pytest.mark.parametrize("written", ["", "agent:*", "**", " x", "x\n", "a" * 257, "\x85"])
def test_a_subject_that_is_not_one_party_is_refused(written: str) -> None:
    with pytest.raises(MalformedMessage):
        granting.subject(written)


def test_a_guardrail_may_name_many_subjects() -> None:
    assert granting.subjects("agent:*") == "agent:*"
    with pytest.raises(MalformedMessage):
        granting.subjects("*a" * 9)


@pytest.mark.parametrize("written", ["tools/call", "*", "tools/*", "perm", "admin/write", "a.b/c"])
def test_a_verb_is_a_method_or_a_family(written: str) -> None:
    assert granting.verb(written) == written


@pytest.mark.parametrize(
    "written", ["", "tools/", "/call", "*/list", "to*", "tools/*/x", "a b", "tools//x", "x" * 129]
)
def test_a_verb_that_is_no_method_is_refused(written: str) -> None:
    with pytest.raises(MalformedMessage):
        granting.verb(written)


@given(st.text(max_size=40))
def test_whatever_is_accepted_stays_as_it_is_kept(written: str) -> None:
    for read in (granting.target, granting.subject, granting.verb):
        try:
            kept = read(written)
        except MalformedMessage:
            continue
        assert read(kept) == kept
