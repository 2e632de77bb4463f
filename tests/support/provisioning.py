"""A gateway that an identity provider provisions, on a store of its own."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import pytest

from comity.app.settings import ServerSettings
from comity.identity.keys import mint_key
from comity.identity.principals import ApiKey, Principal
from comity.policy.grants import Effect, Grant
from comity.storage import stores
from tests.support.credentials import bearer
from tests.support.principals import add_principals
from tests.support.visitor import Reply, Visitor, visiting

PEPPER = "a pepper of tests, long enough"
OKTA, ROOT, AGENT = "agent:okta", "person:root", "agent:ci"
GRANTS = (
    Grant(OKTA, "scim/write", "*", Effect.ALLOW),
    Grant(ROOT, "*", "*", Effect.ALLOW),
    Grant("group:sre", "tools/call", "up/*", Effect.ALLOW),
)
SCIM_JSON = "application/scim+json"


@dataclass
class Provisioned:
    """One gateway, and the keys of those who come to it."""

    visitor: Visitor
    keys: dict[str, str] = field(default_factory=dict[str, str])

    async def send(
        self,
        method: str,
        path: str,
        body: object = None,
        who: str = OKTA,
        kind: str = SCIM_JSON,
        **headers: str,
    ) -> Reply:
        said = {"content-type": kind, **headers}
        said |= bearer(self.keys[who]) if who else {}
        encoded = b"" if body is None else json.dumps(body).encode()
        return await self.visitor.send(method, said.items(), encoded, path)

    async def scim(
        self, method: str, path: str, body: object = None, expected: int = 200, who: str = OKTA
    ) -> dict[str, Any]:
        reply = await self.send(method, f"/scim/v2/{path}", body, who)
        text = await reply.body()
        assert reply.status == expected, text
        if expected == 204:
            assert text == b""
            return {}
        assert reply.headers["content-type"] == SCIM_JSON
        return json.loads(text)

    async def find(self, kind: str, written: str) -> list[dict[str, Any]]:
        return (await self.scim("GET", f"{kind}?filter={quote(written)}"))["Resources"]

    async def principal(self, id: str) -> Principal | None:
        return await self.visitor.parts.snapshot.records.parties.get(id)

    async def key_of(self, principal: str) -> str:
        """A new key of a principal, from the operator."""
        made = await self.send(
            "POST", "/api/keys", {"principal": principal}, ROOT, "application/json"
        )
        assert made.status == 200, await made.body()
        self.keys[principal] = (await made.json())["key"]
        return self.keys[principal]


@asynccontextmanager
async def provisioned(
    url: str, *servers: ServerSettings, **chosen: Any
) -> AsyncGenerator[Provisioned]:
    """A gateway on a store that has the provider and an operator."""
    async with visiting(*servers, store_url=url, identity_mode="required", **chosen) as visitor:
        yield Provisioned(visitor)


async def prepare_store(url: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Make the tables, the provider and the operator; the key of each."""
    monkeypatch.setenv("COMITY_PEPPER", PEPPER)
    await stores.upgrade_store(url)
    return await add_principals(url, PEPPER, (OKTA, ROOT, AGENT), *GRANTS)


def new_key(principal: str) -> tuple[str, ApiKey]:
    return mint_key(PEPPER.encode(), ApiKey("", principal, b""))
