"""Which servers are in a topic: only those that were named, and none that was denied."""

from datetime import UTC, datetime, timedelta

import pytest

from comity.rules.access import Access, Decided
from comity.rules.mounting import JOIN, mounted, party_of
from comity.wire.grants import Effect, Forbid, Grant

NOW = datetime(2026, 7, 28, tzinfo=UTC)
FILES = party_of("files")


def is_mounted(*grants: Grant, written: bool = False, forbids: tuple[Forbid, ...] = ()) -> bool:
    access = Access.of(grants, Decided(forbids=forbids))
    return mounted(access, "files", "ops", NOW, is_written=written).is_so


@pytest.mark.parametrize("target", ["ops/*", "ops/files", "*", "o*/*"])
def test_a_grant_to_the_server_itself_puts_it_into_a_topic(target: str) -> None:
    assert is_mounted(Grant(FILES, JOIN, target, Effect.ALLOW))


@pytest.mark.parametrize(
    "grant",
    [
        Grant("*", "*", "*", Effect.ALLOW),
        Grant("*", JOIN, "*", Effect.ALLOW),
        Grant(FILES, "*", "*", Effect.ALLOW),
        Grant("server:web", JOIN, "ops/*", Effect.ALLOW),
        Grant(FILES, JOIN, "dev/*", Effect.ALLOW),
        Grant(FILES, JOIN, "ops/web", Effect.ALLOW),
        Grant(FILES, "topic/send", "ops/*", Effect.ALLOW),
        Grant(FILES, JOIN, "ops/*", Effect.ALLOW, expires_at=NOW),
        Grant(FILES, JOIN, "ops/*", Effect.ASK),
    ],
)
def test_nothing_less_than_that_does(grant: Grant) -> None:
    assert not is_mounted()
    assert not is_mounted(grant)


def test_a_file_puts_it_there_and_a_denial_comes_first() -> None:
    assert is_mounted(written=True)
    allowed = Grant(FILES, JOIN, "ops/*", Effect.ALLOW)
    for denied in (
        Grant(FILES, JOIN, "ops/*", Effect.DENY),
        Grant("*", "topic/*", "*", Effect.DENY),
    ):
        assert not is_mounted(denied, allowed, written=True)
    guardrail = Forbid("server:*", JOIN, "ops/*")
    assert not is_mounted(allowed, written=True, forbids=(guardrail,))


def test_it_is_said_until_when_that_is_so() -> None:
    soon = NOW + timedelta(hours=1)
    access = Access.of([Grant(FILES, JOIN, "ops/*", Effect.ALLOW, expires_at=soon)])
    assert mounted(access, "files", "ops", NOW, is_written=False) == (True, soon)
    assert not mounted(access, "files", "ops", soon, is_written=False).is_so
