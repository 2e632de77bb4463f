"""Who comes in at the HTTP doors, by what it shows, and what it is told that may not."""

import json
from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta

import pytest

from comity.cluster import streams
from comity.cluster.streams import ForwardedRequest
from comity.gateway.node_forwarding import FromElsewhere
from comity.http.asgi import Message
from comity.mcp.actors import LOCAL, Actor
from tests.support.admitted import INITIALIZE, Admitted, admitting
from tests.support.credentials import GivenOut, bearer
from tests.support.visitor import request

HOUR = timedelta(hours=1)


@pytest.fixture
async def scene() -> AsyncGenerator[Admitted]:
    async with admitting() as admitted:
        yield admitted


@pytest.mark.requirement("REG-auth-fail", "MGP-14.3-1002")
@pytest.mark.parametrize("path", ["/mcp", "/servers/up/mcp", "/servers/none/mcp", "/nowhere"])
async def test_whoever_shows_nothing_is_told_how_to_show_who_it_is(
    scene: Admitted, path: str
) -> None:
    reply = await scene.come(None, path).post(INITIALIZE)
    assert reply.status == 401
    assert reply.headers["www-authenticate"] == 'Bearer realm="comity"'
    error = (await reply.json())["error"]
    assert error["data"]["error_type"] == "unauthenticated"
    assert error["data"]["_mgp"]["code"] == 1002
    assert "comity keys create" in error["message"]
    assert error["data"]["trace_id"]


@pytest.mark.requirement("REG-auth-keys")
async def test_the_holder_of_a_key_comes_in_as_its_party(scene: Admitted) -> None:
    key = scene.given_out.give("agent:ci")
    visitor = await scene.greeted(key, "/servers/up/mcp")
    assert (await visitor.call("plain")).status == 200
    (session,) = scene.visitor.parts.sessions
    assert session.party == "agent:ci"
    (known,) = scene.given_out.keys.values()
    assert len(known.mac) == 32
    assert key.encode() not in known.mac


@pytest.mark.requirement("REG-auth-fail")
@pytest.mark.parametrize(
    "shown",
    [
        "Bearer",
        "Bearer ",
        "Basic dXNlcjpwYXNz",
        "Bearer cmty_live_short",
        "Bearer eyJhbGciOiJub25lIn0.e30.",
        "cmty",
    ],
)
async def test_what_is_no_credential_of_ours_is_refused(scene: Admitted, shown: str) -> None:
    visitor = scene.come(None)
    visitor.session = {"authorization": shown}
    reply = await visitor.post(INITIALIZE)
    assert reply.status == 401
    assert 'error="invalid_token"' in reply.headers["www-authenticate"]


async def test_a_key_that_nobody_was_given_is_refused_without_a_word_of_it(scene: Admitted) -> None:
    stranger = GivenOut().give("agent:ci")
    reply = await scene.come(stranger).post(INITIALIZE)
    assert reply.status == 401
    assert stranger.split("_")[3][:20] not in (await reply.body()).decode()


@pytest.mark.requirement("MGP-14.3-1003")
async def test_a_key_that_has_expired_says_so(scene: Admitted) -> None:
    key = scene.given_out.give("agent:ci", expires_at=datetime.now(UTC) - HOUR)
    reply = await scene.come(key).post(INITIALIZE)
    assert reply.status == 401
    error = (await reply.json())["error"]
    assert error["data"]["error_type"] == "credential_expired"
    assert error["data"]["_mgp"]["code"] == 1003


async def test_session_survives_a_revoked_key_only_with_another_key_of_its_principal(
    scene: Admitted,
) -> None:
    first, second = scene.given_out.give("agent:ci"), scene.given_out.give("agent:ci")
    visitor = await scene.greeted(first)
    assert (await visitor.post(request(1, "ping"))).status == 200
    scene.given_out.revoke(first)
    assert (await visitor.post(request(2, "ping"))).status == 401
    visitor.session |= bearer(second)
    assert (await visitor.post(request(3, "ping"))).status == 200


async def test_disabled_or_removed_principal_is_refused(scene: Admitted) -> None:
    key = scene.given_out.give("agent:ci")
    visitor = await scene.greeted(key)
    scene.given_out.disable("agent:ci")
    assert (await visitor.post(request(1, "ping"))).status == 401
    del scene.given_out.parties["agent:ci"]
    assert (await scene.come(key).post(INITIALIZE)).status == 401


@pytest.mark.parametrize("path", ["/health", "/ready"])
async def test_whether_it_lives_is_told_to_everybody(scene: Admitted, path: str) -> None:
    assert (await scene.come(None).send("GET", path=path)).status == 200


@pytest.mark.parametrize("path", ["/metrics", "/api/status", "/api/servers", "/api/keys"])
async def test_what_operators_read_is_for_those_who_were_granted_it(
    scene: Admitted, path: str
) -> None:
    assert (await scene.come(None).send("GET", path=path)).status == 401
    key = scene.given_out.give("agent:ci")
    reply = await scene.come(None).send("GET", bearer(key).items(), path=path)
    assert reply.status == 403
    assert (await reply.json())["error"]["data"]["error_type"] == "operators_only"
    operator = scene.given_out.give(LOCAL.party)
    assert (await scene.come(None).send("GET", bearer(operator).items(), path=path)).status == 200


@pytest.mark.requirement("REG-perm-AdminRead", "REG-perm-AdminWrite")
async def test_a_key_for_reading_changes_nothing(scene: Admitted) -> None:
    reader = scene.given_out.give(LOCAL.party, permissions=("AdminRead",))
    writer = scene.given_out.give(LOCAL.party, permissions=("AdminWrite",))
    order = "/api/servers/up/stop"
    json_type = ("content-type", "application/json")
    assert (
        await scene.come(None).send("GET", bearer(reader).items(), path="/api/servers")
    ).status == 200
    denied = await scene.come(None).send("POST", [*bearer(reader).items(), json_type], b"{}", order)
    assert denied.status == 403
    assert (
        await scene.come(None).send("GET", bearer(writer).items(), path="/api/servers")
    ).status == 403
    done = await scene.come(None).send("POST", [*bearer(writer).items(), json_type], b"{}", order)
    assert done.status == 200


@pytest.mark.requirement("REG-auth-lastused")
async def test_when_a_key_was_last_used_is_noted_and_waits_for_nobody(scene: Admitted) -> None:
    key = scene.given_out.give("agent:ci")
    await scene.greeted(key)
    assert len(scene.visitor.parts.authenticator.key_usage) == 1


async def test_two_credentials_in_one_request_are_refused(scene: Admitted) -> None:
    key = scene.given_out.give("agent:ci")
    twice = [("authorization", f"Bearer {key}")] * 2
    assert (await scene.come(None).send("GET", twice, path="/api/status")).status == 400


async def come_from_another_node(scene: Admitted, actor: Actor, **more: str) -> list[Message]:
    """A request that another node has admitted, and carried here."""
    got: list[Message] = []
    given = {"host": "localhost", "content-type": "application/json", **more}
    headers = [(name.encode(), value.encode()) for name, value in given.items()]
    request = ForwardedRequest("POST", "/mcp", b"", headers, ("10.0.0.9", 5), actor)

    class Back:
        async def send(self, data: bytes) -> None:
            got.append({"data": data})

    answering = FromElsewhere(scene.visitor.parts.http_app)
    await answering.answer(streams.encode_message(request), json.dumps(INITIALIZE).encode(), Back())
    return got


async def test_whom_another_node_has_proved_comes_in_without_credentials(scene: Admitted) -> None:
    key = scene.given_out.give("agent:ci")
    actor = Actor("agent:ci", credential=f"key:{key.split('_')[2]}")
    head, *_ = await come_from_another_node(scene, actor)
    assert streams.response_head(head["data"]).status == 200
    (session,) = scene.visitor.parts.sessions
    assert session.party == "agent:ci"


async def test_credentials_that_were_revoked_count_no_longer_for_another_nodes_word(
    scene: Admitted,
) -> None:
    key = scene.given_out.give("agent:ci")
    actor = Actor("agent:ci", credential=f"key:{key.split('_')[2]}")
    scene.given_out.revoke(key)
    shown = f"Bearer {scene.given_out.give('agent:other')}"
    for refused in (actor, LOCAL):
        head, *_ = await come_from_another_node(scene, refused, authorization=shown)
        assert streams.response_head(head["data"]).status == 401
    assert list(scene.visitor.parts.sessions) == []
