"""What a view tells of names that it does not serve, or whose grants are not known now."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, cast

from comity.catalog.catalog import MAX_NAME_LENGTH, Catalog
from comity.errors import INVALID_PARAMS, POLICY_UNKNOWN, SERVER_NOT_READY
from comity.gateway.pipeline import CallGate
from comity.gateway.view_endpoint import ViewEndpoint
from comity.mcp import protocol
from comity.sessions.sessions import Session
from comity.views.model import View
from comity.views.service import ServedView
from tests.support.carriers import Params, Script
from tests.support.cases import loop_over
from tests.support.changing_policy import ChangingPolicy
from tests.support.desks import Asked, Front, all_servers, one_server
from tests.support.server_house import tools

ENDPOINTS = ("gateway", "view", "server")
REQUESTS: dict[str, tuple[str, Params]] = {
    "a resource": (protocol.READ_RESOURCE, {"uri": "x:1"}),
    "a resource of a template": (protocol.READ_RESOURCE, {"uri": "y:1"}),
    "a missing resource": (protocol.READ_RESOURCE, {"uri": "z:1"}),
    "a completion": (
        protocol.COMPLETE,
        {"ref": {"type": "ref/resource", "uri": "y:{id}"}, "argument": {}},
    ),
    "a prompt": (protocol.GET_PROMPT, {"name": "srv__hello"}),
    "a missing prompt": (protocol.GET_PROMPT, {"name": "srv__none"}),
    "a tool": (protocol.CALL_TOOL, {"name": "t", "arguments": {}}),
    "a missing tool": (protocol.CALL_TOOL, {"name": "none", "arguments": {}}),
}


def scripted(version: str) -> Script:
    offered: Params = {"tools": {}, "prompts": {}, "resources": {}, "completions": {}}
    script = Script(modern=version == "modern", handshake=version == "legacy")
    script.replies = {
        protocol.INITIALIZE: {
            "protocolVersion": protocol.LATEST_HANDSHAKE,
            "capabilities": offered,
            "serverInfo": {"name": "s", "version": "1"},
        },
        protocol.DISCOVER: {
            "supportedVersions": [protocol.LATEST_MODERN],
            "capabilities": offered,
        },
        protocol.LIST_TOOLS: tools("t"),
        protocol.LIST_PROMPTS: {"prompts": [{"name": "hello"}]},
        protocol.LIST_RESOURCES: {"resources": [{"name": "one", "uri": "x:1"}]},
        protocol.LIST_TEMPLATES: {"resourceTemplates": [{"name": "y", "uriTemplate": "y:{id}"}]},
    }
    return script


class Scene:
    """One server behind one endpoint, and a client of one protocol version."""

    def __init__(self, front: Front, policy: ChangingPolicy, session: Session | None) -> None:
        self.front = front
        self.policy = policy
        self._session = session

    def ask(self, method: str, params: Params) -> Asked:
        if self._session is None:
            return self.front.handle_modern_request(method, params)
        return self.front.ask(self._session, method, params)


@asynccontextmanager
async def opened_at(endpoint: str, version: str) -> AsyncGenerator[Scene]:
    policy = ChangingPolicy()

    def make_gate(catalog: Catalog) -> CallGate:
        return CallGate(catalog, policy)

    script = scripted(version)
    opened = (
        one_server(script, make_gate=make_gate)
        if endpoint == "server"
        else all_servers({"srv": script}, make_gate=make_gate)
    )
    async with opened as front:
        if endpoint == "view":
            view = ServedView(View("v", select=("srv/*",)), front.catalog, None)
            front.desk = ViewEndpoint(view, cast("Any", None), cast("Any", front.desk))
        yield Scene(front, policy, await front.client() if version == "legacy" else None)


@loop_over("endpoint", ENDPOINTS)
@loop_over("version", ["modern", "legacy"])
async def test_a_uri_longer_than_any_listed_one_is_refused_before_it_is_judged(
    endpoint: str, version: str
) -> None:
    async with opened_at(endpoint, version) as scene:
        long = "x:" + "1" * MAX_NAME_LENGTH
        long_requests: list[tuple[str, Params]] = [
            (protocol.READ_RESOURCE, {"uri": long}),
            (protocol.COMPLETE, {"ref": {"type": "ref/resource", "uri": long}, "argument": {}}),
        ]
        for method, params in long_requests:
            error = await scene.ask(method, params).error()
            assert error.code == INVALID_PARAMS.code
            assert str(MAX_NAME_LENGTH) in error.message


@loop_over("what", REQUESTS)
@loop_over("version", ["modern", "legacy"])
async def test_while_the_policy_is_unknown_a_view_tells_callers_to_come_again(
    what: str, version: str
) -> None:
    async with opened_at("view", version) as scene:
        scene.policy.is_known = False
        refusal = await scene.ask(*REQUESTS[what]).refusal()
        assert refusal["error_type"] == POLICY_UNKNOWN.error_type


@loop_over("version", ["modern", "legacy"])
async def test_while_a_server_starts_a_view_lacks_no_resource_for_good(version: str) -> None:
    async with opened_at("view", version) as scene:
        scene.front.catalog.starting_servers.add("other")
        refusal = await scene.ask(*REQUESTS["a missing resource"]).refusal()
        assert refusal["error_type"] == SERVER_NOT_READY.error_type
