"""The gateway itself, in this process and on a real socket, with a topic that participants join."""

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from comity.identity.principals import Principal
from comity.mcp.actors import ADMIN_READ, ADMIN_WRITE
from comity.policy.grants import Effect, Grant
from tests.support.credentials import GivenOut, bearer
from tests.support.visitor import Visitor, visiting

ADMIN = "person:admin"
TOPIC = "ops"


@dataclass
class Door:
    """Where participants join; `token` is who somebody is."""

    visitor: Visitor
    given_out: GivenOut

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.visitor.place.address.rpartition(':')[2]}"

    def token(self, party: str) -> str:
        return self.given_out.give(party)

    async def promote(self, party: str, *add: str, remove: tuple[str, ...] = ()) -> dict[str, Any]:
        """As the document has it: `POST /admin/participants/{id}/capabilities`. (MCPx §11.3)"""
        self.given_out.parties.setdefault(party, Principal(party))
        body = json.dumps({"add": add, "remove": remove}).encode()
        headers = {"content-type": "application/json", **bearer(self.token(ADMIN))}
        path = f"/admin/participants/{party}/capabilities"
        reply = await self.visitor.send("POST", headers.items(), body, path)
        said = await reply.body()
        assert reply.status == 200, said
        return json.loads(said)


@asynccontextmanager
async def door(
    allowed: Mapping[str, tuple[str, ...]] | None = None, **chosen: Any
) -> AsyncGenerator[Door]:
    """Each party may send what it is allowed; of others what a newcomer may: propose and speak."""
    given_out = GivenOut()
    grants = [Grant(ADMIN, verb, "*", Effect.ALLOW) for verb in (ADMIN_READ, ADMIN_WRITE)]
    for party, capabilities in (allowed or {}).items():
        grants += [
            Grant(party, "topic/send", f"{TOPIC}/{each}", Effect.ALLOW) for each in capabilities
        ]
    settings: dict[str, Any] = {
        "identity_mode": "required",
        "topics_access": "public",
        "topics_message_rate": 6_000,
        "topics_chat_rate": 6_000,
        "grants": tuple(grants),
        **chosen,
    }
    async with visiting(register=given_out.register, **settings) as visitor:
        yield Door(visitor, given_out)
