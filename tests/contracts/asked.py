"""An ask for tests of stores, and how it is brought into each state."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from comity.ports.asking import AskRecords
from comity.rules.asks import Happened
from comity.wire.asks import Answer, Ask, Kind, State, Verdict

NOW = datetime(2026, 11, 15, 8, 30, tzinfo=UTC)
HOUR = timedelta(hours=1)
UNTIL = NOW + 2 * HOUR
AGENT = "agent:ci"
ANA, BEA = "person:ana@example.org", "person:bea@example.org"

ASK = Ask(
    id="0a",
    kind=Kind.CONFIRM,
    asker=AGENT,
    server="files",
    tool="delete",
    digest="d1",
    message="agent:ci wants to delete /tmp/é\N{GRINNING FACE}",
    about={"arguments": {"path": "/tmp/é", "depth": [1, {"nul": "\0"}], "big": 10**300}},
    created_at=NOW,
    expires_at=NOW + HOUR,
    trace="0" * 32,
    options=("once", "always\nfor a day", ""),
    schema={"type": "object", "properties": {"reason": {"type": "string"}}},
)


def said(verdict: Verdict = Verdict.ACCEPT, by: str = ANA, at: datetime = NOW) -> Answer:
    return Answer(by, verdict, at)


type Deed = Callable[[AskRecords, str], Awaitable[object]]

DEEDS: dict[Happened, Deed] = {
    Happened.ACCEPTED: lambda asks, id: asks.answer(id, said(), UNTIL),
    Happened.DECLINED: lambda asks, id: asks.answer(id, said(Verdict.DECLINE), UNTIL),
    Happened.CANCELLED: lambda asks, id: asks.answer(id, said(Verdict.CANCEL), UNTIL),
    Happened.DEFERRED: lambda asks, id: asks.answer(id, said(Verdict.DEFER, BEA), UNTIL),
    Happened.EXPIRED: lambda asks, id: asks.end(id, State.EXPIRED, NOW),
    Happened.WITHDRAWN: lambda asks, id: asks.end(id, State.WITHDRAWN, NOW),
    Happened.USED: lambda asks, id: asks.use(id, "call-1", NOW),
    Happened.RESTORED: lambda asks, id: asks.restore(id, "call-1"),
}
"""How each thing is made to happen, by somebody who has said nothing yet."""

WAYS: dict[State, tuple[Happened, ...]] = {
    State.PENDING: (),
    State.DEFERRED: (Happened.DEFERRED,),
    State.ACCEPTED: (Happened.ACCEPTED,),
    State.USED: (Happened.ACCEPTED, Happened.USED),
    State.DECLINED: (Happened.DECLINED,),
    State.CANCELLED: (Happened.CANCELLED,),
    State.EXPIRED: (Happened.EXPIRED,),
    State.WITHDRAWN: (Happened.WITHDRAWN,),
}


async def brought_to(asks: AskRecords, state: State, ask: Ask = ASK) -> Ask:
    await asks.open(ask)
    for happened in WAYS[state]:
        await DEEDS[happened](asks, ask.id)
    found = await kept(asks, ask.id)
    assert found.state is state
    return found


def ask_no(number: int, **changed: Any) -> Ask:
    return replace(ASK, id=f"{number:02}", digest=f"d{number:02}", **changed)


async def kept(asks: AskRecords, id: str = "0a") -> Ask:
    found = await asks.get(id)
    assert found is not None
    return found
