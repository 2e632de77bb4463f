"""Decisions of people as the records keep them: asks that were opened, answered and used."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from comity.app.records import RecordStores
from comity.approvals.model import (
    ApprovalAnswer,
    ApprovalDecision,
    ApprovalKind,
    ApprovalRequest,
    new_request_id,
)

ANA, BEN = "person:ana@example.org", "person:ben@example.org"
_LASTS = timedelta(days=400)
"""So long that a gateway which runs ends none of them."""

type Arguments = Callable[[int], Mapping[str, object]]


def a_file(number: int) -> Mapping[str, object]:
    return {"path": f"/project/{number}.txt"}


@dataclass(frozen=True, slots=True)
class Decisions:
    """Who asked for what, and who decided: one after the other, over some days up to now."""

    asker: str = "agent:x"
    server: str = "fs"
    tool: str = "read_file"
    definition: str = "d1"
    people: tuple[str, ...] = (ANA, BEN)
    days: float = 1
    now: datetime | None = None

    async def put(
        self,
        records: RecordStores,
        count: int,
        arguments: Arguments = a_file,
        verdict: ApprovalDecision | None = ApprovalDecision.ACCEPT,
    ) -> list[ApprovalRequest]:
        """Keep so many; without a verdict nobody answered."""
        until = self.now or datetime.now(UTC)
        asks: list[ApprovalRequest] = []
        for number in range(count):
            ago = timedelta(days=self.days) * ((count - number) / count)
            asks.append(await self._one(records, until - ago, number, arguments(number), verdict))
        return asks

    async def _one(
        self,
        records: RecordStores,
        at: datetime,
        number: int,
        arguments: Mapping[str, object],
        verdict: ApprovalDecision | None,
    ) -> ApprovalRequest:
        id = new_request_id(at, f"{self.asker}{number}{verdict}".encode()[-10:])
        about = {"arguments": arguments, "definition": self.definition, "risk": "moderate"}
        place = (self.asker, self.server, self.tool)
        ask = await records.approval_requests.open(
            ApprovalRequest(
                id,
                ApprovalKind.CONFIRM,
                *place,
                id,
                "may it?",
                about,
                at,
                at + _LASTS,
                trace=f"{id:0>32}",
            )
        )
        if verdict is None:
            ended = await records.approval_requests.expire(at + _LASTS)
            assert [each.id for each in ended] == [id]
            return ended[0]
        by = self.people[number % len(self.people)]
        moment = at + timedelta(seconds=20)
        answered = await records.approval_requests.answer(
            id, ApprovalAnswer(by, verdict, moment), at + _LASTS
        )
        assert answered is not None
        if verdict is not ApprovalDecision.ACCEPT:
            return answered
        used = await records.approval_requests.consume(ask.id, f"call-{id}", moment)
        assert used is not None
        return used
