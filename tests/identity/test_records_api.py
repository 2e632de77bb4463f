"""Keys and parties at /api: made, shown once, replaced and taken back, by whoever may."""

import json
from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from comity.http.api_input import AUTHOR_FIELDS
from comity.mcp.actors import LOCAL
from tests.support.admitted import INITIALIZE
from tests.support.credentials import bearer
from tests.support.visitor import Frame, Reply, Visitor, visiting

HOUR = timedelta(hours=1)


@pytest.fixture
async def visitor() -> AsyncGenerator[Visitor]:
    async with visiting() as visitor:
        yield visitor


async def order(visitor: Visitor, path: str, body: object = None, key: str = "") -> Reply:
    headers = {"content-type": "application/json", **(bearer(key) if key else {})}
    return await visitor.send("POST", headers.items(), json.dumps(body or {}).encode(), path)


async def made(visitor: Visitor, party: str = "agent:ci", **wanted: object) -> Frame:
    reply = await order(visitor, "/api/keys", {"principal": party, **wanted})
    assert reply.status == 200, await reply.body()
    return await reply.json()


async def read(visitor: Visitor, path: str) -> Frame:
    reply = await visitor.send("GET", path=path)
    assert reply.status == 200, await reply.body()
    return await reply.json()


async def comes_in(visitor: Visitor, key: str) -> int:
    someone = visitor.other("/mcp")
    someone.session = bearer(key)
    return (await someone.post(INITIALIZE)).status


@pytest.mark.requirement("REG-auth-keys", "REG-auth-info")
async def test_a_key_is_shown_once_and_lets_its_holder_in_at_once(visitor: Visitor) -> None:
    expires = datetime.now(UTC) + HOUR
    key = await made(
        visitor,
        label="nightly",
        permissions=["ToolInvoke(files/read)"],
        requests_per_minute=10,
        requests_per_hour=100,
        expires_at=expires.isoformat(),
    )
    assert await comes_in(visitor, key["key"]) == 200
    listed = await read(visitor, "/api/keys")
    (found,) = listed["keys"]
    assert found == {name: value for name, value in key.items() if name != "key"} | {
        "last_used": found["last_used"]
    }
    assert found["permissions"] == ["ToolInvoke(files/read)"]
    assert (found["requests_per_minute"], found["requests_per_hour"]) == (10, 100)
    assert found["created_by"] == LOCAL.party
    secret = key["key"].split("_")[3]
    assert secret not in json.dumps(listed)
    assert "mac" not in json.dumps(listed)
    kept = await visitor.parts.snapshot.records.keys.get(key["id"])
    assert kept is not None
    assert len(kept.mac) == 32


async def test_a_party_comes_to_be_known_by_its_first_key(visitor: Visitor) -> None:
    await made(visitor, "person:ana@example.org")
    await made(visitor, "agent:ci")
    listed = (await read(visitor, "/api/principals"))["principals"]
    assert {each["id"]: each["kind"] for each in listed} == {
        "agent:ci": "agent",
        "person:ana@example.org": "person",
    }


async def test_a_revoked_key_lets_nobody_in(visitor: Visitor) -> None:
    key = await made(visitor)
    reply = await order(visitor, f"/api/keys/{key['id']}/revoke")
    assert (await reply.json())["revoked_at"] is not None
    assert await comes_in(visitor, key["key"]) == 401


async def test_a_rotated_key_counts_beside_the_new_one_for_a_while(visitor: Visitor) -> None:
    old = await made(visitor, label="nightly", permissions=["AdminRead"])
    new = await (await order(visitor, f"/api/keys/{old['id']}/rotate")).json()
    assert new["key"] != old["key"]
    assert (new["label"], new["permissions"]) == ("nightly", ["AdminRead"])
    assert [await comes_in(visitor, each["key"]) for each in (old, new)] == [200, 200]
    listed = {
        each["id"]: each for each in (await read(visitor, "/api/keys?party=agent:ci"))["keys"]
    }
    assert listed[old["id"]]["expires_at"] is not None
    assert listed[new["id"]]["expires_at"] is None


async def test_a_key_is_replaced_at_once_where_no_time_is_given(visitor: Visitor) -> None:
    old = await made(visitor)
    new = await (await order(visitor, f"/api/keys/{old['id']}/rotate", {"grace_seconds": 0})).json()
    assert [await comes_in(visitor, each["key"]) for each in (old, new)] == [401, 200]


async def test_a_third_key_is_refused_with_what_to_do(visitor: Visitor) -> None:
    first = await made(visitor)
    await made(visitor)
    for path, body in (
        ("/api/keys", {"principal": "agent:ci"}),
        (f"/api/keys/{first['id']}/rotate", {}),
    ):
        reply = await order(visitor, path, body)
        assert reply.status == 400
        assert "revoke one of them first" in (await reply.json())["error"]["message"]
    assert await comes_in(visitor, first["key"]) == 200


async def test_a_party_is_disabled_and_enabled_again(visitor: Visitor) -> None:
    key = await made(visitor)
    assert (await order(visitor, "/api/principals/agent:ci/disable")).status == 200
    assert await comes_in(visitor, key["key"]) == 401
    assert (await order(visitor, "/api/principals/agent:ci/enable")).status == 200
    assert await comes_in(visitor, key["key"]) == 200


async def test_a_party_is_added_once(visitor: Visitor) -> None:
    ana = {"id": "person:ana", "kind": "person", "label": "Ana"}
    assert (await (await order(visitor, "/api/principals", ana)).json())["label"] == "Ana"
    again = await order(visitor, "/api/principals", ana)
    assert again.status == 400
    assert "exists already" in (await again.json())["error"]["message"]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"principal": ""},
        {"principal": "*"},
        {"principal": "system:gateway"},
        {"principal": 7},
        {"principal": "a" * 2000},
        {"principal": "agent:ci", "permissions": ["Everything"]},
        {"principal": "agent:ci", "permissions": "AdminRead"},
        {"principal": "agent:ci", "requests_per_minute": -1},
        {"principal": "agent:ci", "requests_per_minute": True},
        {"principal": "agent:ci", "expires_at": "2020-01-01T00:00:00Z"},
        {"principal": "agent:ci", "expires_at": "tomorrow"},
        {"principal": "agent:ci", "expires_at": "2026-12-31T18:00:00"},
        {"principal": "agent:ci", "mac": "00"},
        {"principal": "agent:ci", "id": "a" * 11},
    ],
    ids=str,
)
async def test_what_cannot_be_is_refused_and_makes_no_key(visitor: Visitor, body: Any) -> None:
    reply = await order(visitor, "/api/keys", body)
    assert reply.status == 400
    assert (await read(visitor, "/api/keys"))["keys"] == []


@pytest.mark.parametrize("name", sorted(AUTHOR_FIELDS))
@pytest.mark.parametrize("path", ["/api/keys", "/api/principals"])
async def test_nobody_is_named_as_who_did_it_but_who_did(
    visitor: Visitor, name: str, path: str
) -> None:
    body = {"principal": "agent:ci"} if path == "/api/keys" else {"id": "agent:ci"}
    refused = await order(visitor, path, {**body, name: "person:root"})
    assert refused.status == 400
    assert name in (await refused.json())["error"]["message"]
    done = await order(visitor, path, {**body, name: LOCAL.party})
    assert (await done.json())["created_by"] == LOCAL.party


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/keys/none/revoke", 404),
        ("/api/keys/none/rotate", 404),
        ("/api/principals/none/disable", 404),
        ("/api/keys/a/b/c", 404),
        ("/api/principals/a", 404),
    ],
)
async def test_what_is_not_there_is_not_found(visitor: Visitor, path: str, status: int) -> None:
    assert (await order(visitor, path)).status == status


async def test_a_page_of_elsewhere_makes_no_key(visitor: Visitor) -> None:
    headers = [("content-type", "application/json"), ("origin", "http://localhost:3000")]
    reply = await visitor.send("POST", headers, b'{"principal": "agent:ci"}', "/api/keys")
    assert reply.status == 403
    plain = await visitor.send("POST", [("content-type", "text/plain")], b"{}", "/api/keys")
    assert plain.status == 415


async def test_whoever_only_reads_makes_no_key(visitor: Visitor) -> None:
    reader = await made(visitor, LOCAL.party, permissions=["AdminRead"])
    nobody = await made(visitor, "agent:ci")
    for key, status in ((reader["key"], 403), (nobody["key"], 403)):
        assert (await order(visitor, "/api/keys", {"principal": "agent:x"}, key)).status == status
    read_with = await visitor.send("GET", bearer(reader["key"]).items(), path="/api/keys")
    assert read_with.status == 200


@pytest.mark.requirement("REG-auth-lastused")
async def test_keys_and_their_last_use_survive_a_restart(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/comity.db"
    async with visiting(store_url=store) as visitor:
        key = await made(visitor)
        assert await comes_in(visitor, key["key"]) == 200
    async with visiting(store_url=store) as visitor:
        assert await comes_in(visitor, key["key"]) == 200
        (found,) = (await read(visitor, "/api/keys"))["keys"]
        assert found["last_used"] is not None
    raw = (tmp_path / "comity.db").read_bytes()
    assert key["key"].split("_")[3][:43].encode() not in raw
