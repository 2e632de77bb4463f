"""People who answer the approval requests of a gateway."""

import asyncio
from dataclasses import dataclass
from typing import Any, Final

from tests.kit.clients import ApiClient, ApiReply
from tests.kit.clock import BOUND

APPROVALS: Final = "/api/approvals"

type Approval = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Person:
    """Somebody with a key, who answers over the operator API. A grant has to allow that."""

    name: str
    api: ApiClient

    async def pending(self, count: int = 1) -> list[Approval]:
        """The open approval requests, oldest first, once there are so many."""
        async with asyncio.timeout(BOUND):
            while True:
                reply = await self.api.request("GET", f"{APPROVALS}?order=oldest")
                assert reply.status == 200, reply
                if len(reply.body["approvals"]) >= count:
                    return reply.body["approvals"]
                await asyncio.sleep(0.01)

    async def approves(self, approval: Approval | None = None) -> ApiReply:
        """Accept this approval request, or the only open one."""
        return await self._answers("accept", approval)

    async def declines(self, approval: Approval | None = None) -> ApiReply:
        return await self._answers("decline", approval)

    async def _answers(self, verdict: str, approval: Approval | None) -> ApiReply:
        if approval is None:
            (approval,) = await self.pending()
        path = f"{APPROVALS}/{approval['id']}/answer"
        return await self.api.request("POST", path, {"verdict": verdict})
