"""An ask for tests of stores, and how it is brought into each state."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from comity.approvals.model import (
    ApprovalAnswer,
    ApprovalDecision,
    ApprovalEvent,
    ApprovalKind,
    ApprovalRequest,
    ApprovalState,
    ApprovalStore,
)

NOW = datetime(2026, 11, 15, 8, 30, tzinfo=UTC)
HOUR = timedelta(hours=1)
UNTIL = NOW + 2 * HOUR
AGENT = "agent:ci"
ANA, BEA = "person:ana@example.org", "person:bea@example.org"

ASK = ApprovalRequest(
    id="0a",
    kind=ApprovalKind.CONFIRM,
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


def said(
    verdict: ApprovalDecision = ApprovalDecision.ACCEPT, by: str = ANA, at: datetime = NOW
) -> ApprovalAnswer:
    return ApprovalAnswer(by, verdict, at)


type Deed = Callable[[ApprovalStore, str], Awaitable[object]]

DEEDS: dict[ApprovalEvent, Deed] = {
    ApprovalEvent.APPROVED: lambda asks, id: asks.answer(id, said(), UNTIL),
    ApprovalEvent.DENIED: lambda asks, id: asks.answer(id, said(ApprovalDecision.DECLINE), UNTIL),
    ApprovalEvent.CANCELLED: lambda asks, id: asks.answer(id, said(ApprovalDecision.CANCEL), UNTIL),
    ApprovalEvent.DEFERRED: lambda asks, id: asks.answer(
        id, said(ApprovalDecision.DEFER, BEA), UNTIL
    ),
    ApprovalEvent.EXPIRED: lambda asks, id: asks.end(id, ApprovalState.EXPIRED, NOW),
    ApprovalEvent.WITHDRAWN: lambda asks, id: asks.end(id, ApprovalState.WITHDRAWN, NOW),
    ApprovalEvent.CONSUMED: lambda asks, id: asks.consume(id, "call-1", NOW),
    ApprovalEvent.RELEASED: lambda asks, id: asks.release(id, "call-1"),
}
"""How each thing is made to happen, by somebody who has said nothing yet."""

WAYS: dict[ApprovalState, tuple[ApprovalEvent, ...]] = {
    ApprovalState.PENDING: (),
    ApprovalState.DEFERRED: (ApprovalEvent.DEFERRED,),
    ApprovalState.APPROVED: (ApprovalEvent.APPROVED,),
    ApprovalState.CONSUMED: (ApprovalEvent.APPROVED, ApprovalEvent.CONSUMED),
    ApprovalState.DENIED: (ApprovalEvent.DENIED,),
    ApprovalState.CANCELLED: (ApprovalEvent.CANCELLED,),
    ApprovalState.EXPIRED: (ApprovalEvent.EXPIRED,),
    ApprovalState.WITHDRAWN: (ApprovalEvent.WITHDRAWN,),
}


async def brought_to(
    asks: ApprovalStore, state: ApprovalState, ask: ApprovalRequest = ASK
) -> ApprovalRequest:
    await asks.open(ask)
    for happened in WAYS[state]:
        await DEEDS[happened](asks, ask.id)
    found = await kept(asks, ask.id)
    assert found.state is state
    return found


def ask_no(number: int, **changed: Any) -> ApprovalRequest:
    return replace(ASK, id=f"{number:02}", digest=f"d{number:02}", **changed)


async def kept(asks: ApprovalStore, id: str = "0a") -> ApprovalRequest:
    found = await asks.get(id)
    assert found is not None
    return found
