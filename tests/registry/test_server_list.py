"""The servers of a gateway in the API of the MCP registry, cut to what a principal may use."""

import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from comity.app.settings import ServerSettings
from comity.identity.settings import IdentitySettings
from comity.mcp.actors import CALL
from comity.policy.grants import Effect, Grant
from tests.support.credentials import GivenOut, bearer
from tests.support.visitor import Visitor, visiting

pytestmark = pytest.mark.integration

NAMES = ("alpha", "beta", "delta", "gamma")
ALL, SOME, NOBODY = "agent:all", "agent:some", "agent:nobody"
GRANTS = (
    Grant(ALL, CALL, "*", Effect.ALLOW),
    Grant(SOME, CALL, "beta/read", Effect.ALLOW),
    Grant(SOME, CALL, "gamma/*", Effect.ALLOW),
    Grant("*", CALL, "delta/*", Effect.DENY),
)


class Listing:
    """A gateway with servers that need not run, and the keys of its principals."""

    def __init__(self, visitor: Visitor, keys: dict[str, str]) -> None:
        self._visitor = visitor
        self._keys = keys
        self.origin = visitor.place.address

    async def get(self, path: str, party: str | None = ALL, method: str = "GET") -> tuple[int, Any]:
        headers = {} if party is None else bearer(self._keys[party])
        reply = await self._visitor.send(method, headers.items(), path=f"/v0.1/servers{path}")
        body = await reply.body()
        self.headers = reply.headers
        return reply.status, json.loads(body) if body else None

    async def names(self, query: str = "", party: str = ALL) -> list[str]:
        status, document = await self.get(query, party)
        assert status == 200
        assert document["metadata"]["count"] == len(document["servers"])
        return [each["server"]["name"] for each in document["servers"]]


@pytest.fixture
async def listing() -> AsyncGenerator[Listing]:
    known = GivenOut()
    keys = {party: known.give(party) for party in (ALL, SOME, NOBODY)}
    servers = [
        ServerSettings(name, f"The server {name}", "http", url="http://127.0.0.1:9/mcp")
        for name in NAMES
    ]
    async with visiting(
        *servers,
        register=known.register,
        identity=IdentitySettings(mode="required"),
        grants=GRANTS,
    ) as visitor:
        yield Listing(visitor, keys)


def named(*ids: str) -> list[str]:
    return [f"localhost/{each}" for each in ids]


async def test_each_principal_sees_only_the_servers_that_it_may_use(listing: Listing) -> None:
    assert await listing.names() == named("alpha", "beta", "gamma")
    assert await listing.names(party=SOME) == named("beta", "gamma")
    assert await listing.names(party=NOBODY) == []
    assert await listing.names("?search=ET", SOME) == named("beta")
    assert await listing.names("?search=delta") == []
    assert await listing.names("?version=9.9.9") == []


async def test_a_stranger_gets_401_and_learns_nothing(listing: Listing) -> None:
    for path in ("", "/localhost%2Falpha/versions", "/localhost%2Falpha/versions/latest", "/x"):
        status, document = await listing.get(path, None)
        assert status == 401
        assert "alpha" not in str(document)
        assert "www-authenticate" in listing.headers


async def test_pages_name_and_count_only_visible_servers(listing: Listing) -> None:
    status, first = await listing.get("?limit=1", SOME)
    assert (status, first["metadata"]["count"]) == (200, 1)
    cursor = first["metadata"]["nextCursor"]
    status, second = await listing.get(f"?limit=1&cursor={cursor}", SOME)
    assert [each["server"]["name"] for each in second["servers"]] == named("gamma")
    # The hidden server between both and the one after them leave no trace.
    assert "nextCursor" not in second["metadata"]
    status, _ = await listing.get("?limit=500")
    assert status == 200


async def test_a_server_json_names_the_endpoint_of_this_gateway_only(listing: Listing) -> None:
    status, document = await listing.get("/localhost%2Fbeta/versions/latest", SOME)
    assert status == 200
    server = document["server"]
    assert server["remotes"] == [
        {"type": "streamable-http", "url": f"{listing.origin}/servers/beta/mcp"}
    ]
    assert (server["description"], server["version"]) == ("The server beta", "0.0.0")
    assert "127.0.0.1:9" not in str(document)
    assert (await listing.get("/localhost/beta/versions/0.0.0", SOME))[1] == document
    _, versions = await listing.get("/localhost%2Fbeta/versions", SOME)
    assert versions["servers"] == [document]


# A path, and the status for a principal that may not use alpha.
REFUSED = [
    ("/localhost%2Falpha/versions/latest", 404),
    ("/localhost%2Fmissing/versions/latest", 404),
    ("/localhost%2Fbeta/versions/1.2.3", 404),
    ("/other%2Fbeta/versions/latest", 404),
    ("/beta", 404),
    ("/localhost%2Fbeta/versions/latest/more", 404),
    ("?limit=0", 400),
    ("?limit=x", 400),
    ("?cursor=%%%", 400),
    ("?cursor=Li4v", 400),
    ("?limit=1&limit=2", 400),
]


@pytest.mark.parametrize(("path", "status"), REFUSED)
async def test_a_hidden_server_and_a_missing_one_are_the_same(
    listing: Listing, path: str, status: int
) -> None:
    found, document = await listing.get(path, SOME)
    assert found == status
    if status == 404:
        assert document == {"error": "Server not found"}


async def test_the_list_can_only_be_read(listing: Listing) -> None:
    assert (await listing.get("", method="POST"))[0] == 405
    assert (await listing.get("/localhost%2Fbeta/versions/latest", method="DELETE"))[0] == 405
