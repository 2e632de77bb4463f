"""Which account an agent uses: its grants decide it anew when they end or are bounded."""

from datetime import UTC, datetime, timedelta
from typing import Any, cast

from comity.accounts.model import Account, AccountKey
from comity.accounts.sign_in import AccountSelector
from comity.mcp.actors import Actor
from comity.mcp.refusals import Refusal
from comity.policy.grants import Effect, Grant, GrantSet
from comity.policy.snapshot import GrantSnapshot
from tests.support.clock import ManualClock

NOW = datetime(2026, 11, 15, tzinfo=UTC)
ANA, AGENT = "person:ana", "agent:ci"
GRANT = Grant(AGENT, "account/use", f"notes/{ANA}", Effect.ALLOW)
ACTOR = Actor(AGENT)


class Accounts:
    """A server at which each person has an account, and none is connected."""

    def mode_of(self, _: str) -> str:
        return "each"

    def accounts_of(self, _: str) -> list[Account]:
        return []


def a_selector(clock: ManualClock[datetime], grant: Grant = GRANT) -> AccountSelector:
    grants = GrantSnapshot(GrantSet.from_grants([grant]), clock=clock)
    return AccountSelector(cast("Any", Accounts()), grants, lambda: [ANA], grants.generation)


def test_an_agent_loses_the_account_of_a_person_when_its_grant_ends() -> None:
    clock = ManualClock(NOW)
    grant = Grant(
        AGENT, "account/use", f"notes/{ANA}", Effect.ALLOW, expires_at=NOW + timedelta(minutes=5)
    )
    selector = a_selector(clock, grant)
    assert selector.key_for(ACTOR, "notes") == AccountKey("notes", ANA)
    clock.now = NOW + timedelta(hours=1)
    assert isinstance(selector.key_for(ACTOR, "notes"), Refusal)


def test_a_bounded_key_does_not_get_the_account_that_a_wider_key_found() -> None:
    selector = a_selector(ManualClock(NOW))
    assert selector.key_for(ACTOR, "notes") == AccountKey("notes", ANA)
    bounded = Actor(AGENT, permissions=(("tools/call", "notes/*"),))
    assert isinstance(selector.key_for(bounded, "notes"), Refusal)
    assert isinstance(selector.key_for(Actor(AGENT, excluded=("account/",)), "notes"), Refusal)
    assert selector.key_for(ACTOR, "notes") == AccountKey("notes", ANA)
