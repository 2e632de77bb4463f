"""Grants and guardrails, found without looking at all of them."""

import pytest

from comity.rules.entries import Entries, Guardrails
from comity.rules.patterns import Level
from comity.wire.grants import CALL, Effect, Forbid, Grant

TARGETS = ("files/read", "files/*", "files/re*", "*", "*/read", "fi*/*", "*/re*", "web/*")


def entries() -> Entries:
    return Entries.of(Grant("agent:ci", CALL, target, Effect.ALLOW) for target in TARGETS)


@pytest.mark.parametrize(
    ("level", "server", "name", "found"),
    [
        (Level.OFFER, "files", "read", {"files/read"}),
        (Level.OFFER, "files", "write", set[str]()),
        (Level.SERVER, "files", "read", {"files/*", "files/re*"}),
        (Level.SERVER, "files", "write", {"files/*"}),
        (Level.SERVER, "web", "read", {"web/*"}),
        (Level.EVERYTHING, "files", "read", {"*", "*/read", "fi*/*", "*/re*"}),
        (Level.EVERYTHING, "web", "write", {"*"}),
    ],
)
def test_entries_are_found_at_their_level(
    level: Level, server: str, name: str, found: set[str]
) -> None:
    assert {grant.target for grant in entries().at(level, server, name)} == found


def test_of_many_entries_only_those_about_an_offer_are_looked_at() -> None:
    many = [Grant("a", CALL, f"s{n % 100}/t{n}", Effect.ALLOW) for n in range(10_000)]
    assert [g.target for g in Entries.of(many).at(Level.OFFER, "s7", "t107")] == ["s7/t107"]


def test_guardrails_are_found_by_the_server_they_are_about() -> None:
    here = Forbid("agent:*", "tools/*", "files/delete*")
    anywhere = Forbid("*", "*", "*/drop_table")
    rails = Guardrails.of([here, anywhere, Forbid("person:x", "*", "files/*")])
    assert rails.over("agent:ci", CALL, "files", "delete_all") is here
    assert rails.over("person:ana", CALL, "files", "delete_all") is None
    assert rails.over("agent:ci", CALL, "web", "drop_table") is anywhere
    assert rails.over("agent:ci", "prompts/get", "files", "delete_all") is None
    assert Guardrails().over("agent:ci", CALL, "files", "x") is None
