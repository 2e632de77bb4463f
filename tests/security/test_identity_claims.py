"""Who a message says it is from: nothing of it makes anybody somebody else. (D-17, D-37, S5)"""

from collections.abc import Callable
from typing import Any

import pytest

from comity.mcp.actors import GATEWAY, LOCAL
from comity.policy.grants import Effect, Grant
from tests.support.admitted import Admitted, admitting
from tests.support.cases import loop_over
from tests.support.credentials import bearer
from tests.support.visitor import ENVELOPE, Frame, request

GRANTED = "agent:granted"
ONLY_ONE = (
    Grant(GRANTED, "tools/call", "up/plain", Effect.ALLOW),
    Grant("agent:other", "tools/call", "up/another", Effect.ALLOW),
)
NAMES = (
    *("agent_id", "agentId", "granted_by", "created_by", "approved_by", "accepted_by", "from"),
    *("actor", "party", "principal", "user", "user_id", "on_behalf_of", "sub", "client_id"),
    *("impersonate", "delegated_by", "session_party", "x-comity-actor", "_actor"),
)
HEADERS = (
    *("x-agent-id", "x-user", "x-forwarded-user", "x-remote-user", "remote-user", "x-comity-actor"),
    *("x-comity-party", "x-auth-request-user", "x-authenticated-user", "from", "x-api-key"),
    *("x-original-user", "x-goog-authenticated-user-email", "cf-access-client-id", "x-actor"),
)
CLAIMED = (GRANTED, LOCAL.party, GATEWAY, "*", "", {"party": GRANTED}, [GRANTED])

type Put = Callable[[Frame, str, Any], Frame]


def _at_the_top(frame: Frame, name: str, value: Any) -> Frame:
    return {**frame, name: value}


def _in_params(frame: Frame, name: str, value: Any) -> Frame:
    return {**frame, "params": {**frame["params"], name: value}}


def _in_meta(frame: Frame, name: str, value: Any) -> Frame:
    meta = {**frame["params"].get("_meta", {}), name: value}
    return {**frame, "params": {**frame["params"], "_meta": meta}}


def _in_mgp(frame: Frame, name: str, value: Any) -> Frame:
    return _in_params(frame, "_mgp", {name: value})


PLACES: dict[str, Put] = {
    "top": _at_the_top,
    "params": _in_params,
    "_meta": _in_meta,
    "_mgp": _in_mgp,
}


def _is_refused(frame: Frame) -> bool:
    """Whether a call was refused, as denied or as a name that the server does not list."""
    return "error" in frame or bool(frame["result"]["isError"])


def _ran(scene: Admitted) -> int:
    return len(scene.server.of("tools/call"))


@pytest.mark.timeout(180)
@loop_over("place", PLACES)
async def test_a_message_is_from_nobody_but_the_holder_of_its_credentials(place: str) -> None:
    async with admitting(grants=ONLY_ONE) as scene:
        other = scene.given_out.give("agent:other")
        visitor = await scene.greeted(other, "/servers/up/mcp")
        call = request(1, "tools/call", {"name": "plain", "arguments": {}})
        for name in NAMES:
            for value in CLAIMED:
                reply = await visitor.post(PLACES[place](call, name, value))
                assert reply.status in (200, 400), (name, value)
                if reply.status == 200:
                    (frame,) = await reply.frames()
                    assert _is_refused(frame), (name, value)
        assert _ran(scene) == 0
        assert {each.party for each in scene.visitor.parts.sessions} == {"agent:other"}


@pytest.mark.timeout(180)
async def test_a_header_makes_nobody_somebody_else() -> None:
    async with admitting(grants=ONLY_ONE) as scene:
        other = scene.given_out.give("agent:other")
        for name in HEADERS:
            for value in (GRANTED, LOCAL.party):
                claimed = {**bearer(other), name: value}
                visitor = scene.come(None, "/servers/up/mcp")
                reply = await visitor.call_modern("plain", **claimed)
                if name == "x-api-key":
                    # It is a credential too, and it differs from the other one.
                    assert reply.status == 400
                else:
                    assert _is_refused(await reply.json()), name
                bare = await scene.come(None, "/servers/up/mcp").call_modern(
                    "plain", **{name: value}
                )
                assert bare.status == 401, name
        assert _ran(scene) == 0


async def test_whoever_is_granted_it_calls_whatever_it_claims() -> None:
    async with admitting(grants=ONLY_ONE) as scene:
        key = scene.given_out.give(GRANTED)
        visitor = scene.come(None, "/servers/up/mcp")
        params = {"name": "plain", "arguments": {}, "agent_id": "agent:other", "_meta": ENVELOPE}
        shown = {**bearer(key), "mcp-name": "plain"}
        reply = await visitor.ask_modern("tools/call", params, **shown)
        assert reply.status == 200
        assert _ran(scene) == 1
