"""Every route of a real gateway names its permission, and refuses who lacks it."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator, validate

from comity.approvals.api import STREAM_PATH
from comity.http.api import ApiRequest, ApiRoute, Permission, View
from comity.http.api_input import EmptyQuery
from comity.http.api_openapi import PATH as OPENAPI_PATH
from comity.http.api_openapi import describe_routes
from comity.http.asgi import OPERATORS
from comity.mcp.actors import ADMIN_READ, ADMIN_WRITE
from comity.policy.grants import Effect, Grant
from tests.docs import openapi
from tests.support.credentials import GivenOut, bearer
from tests.support.visitor import Visitor, visiting

READER, WRITER, STRANGER = "agent:reader", "agent:writer", "agent:stranger"
GRANTS = (
    Grant(READER, ADMIN_READ, "*", Effect.ALLOW),
    Grant(WRITER, ADMIN_WRITE, "*", Effect.ALLOW),
)

ROUTES = """
GET  /admin/participants/{principal:path}/capabilities ADMIN_READ
POST /admin/participants/{principal:path}/capabilities ADMIN_WRITE
GET  /api/accounts OWN_RECORDS
POST /api/accounts/{account}/disconnect OWN_RECORDS
GET  /api/approvals OWN_RECORDS
GET  /api/approvals/{id} OWN_RECORDS
POST /api/approvals/{id}/answer OWN_RECORDS
POST /api/approvals/{id}/link OWN_RECORDS
GET  /api/audit ADMIN_READ
GET  /api/audit/export ADMIN_READ
GET  /api/audit/key ADMIN_READ
GET  /api/audit/timeline/{name} ADMIN_READ
GET  /api/audit/traces/{trace} ADMIN_READ
GET  /api/audit/verification ADMIN_READ
POST /api/audit/verification ADMIN_WRITE
POST /api/audit/verification/cancel ADMIN_WRITE
GET  /api/calls OWN_RECORDS
POST /api/calls OWN_RECORDS
GET  /api/calls/{id} OWN_RECORDS
POST /api/calls/{id}/cancel OWN_RECORDS
GET  /api/channels ADMIN_READ
POST /api/channels/close ADMIN_WRITE
POST /api/channels/open ADMIN_WRITE
POST /api/channels/send ADMIN_WRITE
GET  /api/config ADMIN_READ
GET  /api/definitions ADMIN_READ
POST /api/definitions/accept ADMIN_WRITE
GET  /api/definitions/{server}/{tool} ADMIN_READ
GET  /api/features ADMIN_READ
POST /api/features/disable ADMIN_WRITE
POST /api/features/enable ADMIN_WRITE
POST /api/features/reset ADMIN_WRITE
GET  /api/grant-suggestions ADMIN_READ
POST /api/grant-suggestions ADMIN_WRITE
GET  /api/grants ADMIN_READ
POST /api/grants ADMIN_WRITE
POST /api/grants/delete ADMIN_WRITE
GET  /api/grants/explain ADMIN_READ
GET  /api/groups ADMIN_READ
POST /api/grants/preview ADMIN_READ
GET  /api/health ADMIN_READ
GET  /api/keys ADMIN_READ
POST /api/keys ADMIN_WRITE
POST /api/keys/{key}/revoke ADMIN_WRITE
POST /api/keys/{key}/rotate ADMIN_WRITE
POST /api/login-links ADMIN_WRITE
GET  /api/models ADMIN_READ
GET  /api/models/usage ADMIN_READ
POST /api/models/{name}/test ADMIN_WRITE
GET  /api/nodes ADMIN_READ
GET  /api/notifiers ADMIN_READ
POST /api/notifiers/{name}/test ADMIN_WRITE
GET  /api/openapi.json ADMIN_READ
GET  /api/overview ADMIN_READ
GET  /api/permissions ADMIN_READ
POST /api/permissions/approve ADMIN_WRITE
POST /api/permissions/deny ADMIN_WRITE
POST /api/permissions/reset ADMIN_WRITE
GET  /api/principals ADMIN_READ
POST /api/principals ADMIN_WRITE
POST /api/principals/{principal:path}/delete ADMIN_WRITE
POST /api/principals/{principal:path}/disable ADMIN_WRITE
POST /api/principals/{principal:path}/enable ADMIN_WRITE
POST /api/principals/{principal:path}/groups ADMIN_WRITE
GET  /api/push-subscriptions OWN_RECORDS
POST /api/push-subscriptions OWN_RECORDS
POST /api/push-subscriptions/delete OWN_RECORDS
GET  /api/pushes ADMIN_READ
POST /api/pushes/{number}/retry ADMIN_WRITE
GET  /api/search ANY_PRINCIPAL
GET  /api/search/categories ANY_PRINCIPAL
GET  /api/secrets ADMIN_READ
GET  /api/secrets/check ADMIN_READ
POST /api/secrets/rotate ADMIN_WRITE
GET  /api/servers ADMIN_READ
GET  /api/servers/{server} ADMIN_READ
GET  /api/servers/{server}/logs ADMIN_READ
POST /api/servers/{server}/restart ADMIN_WRITE
POST /api/servers/{server}/start ADMIN_WRITE
POST /api/servers/{server}/stop ADMIN_WRITE
GET  /api/session ANY_PRINCIPAL
GET  /api/sessions ADMIN_READ
POST /api/sessions/{session}/revoke ADMIN_WRITE
GET  /api/state OWN_RECORDS
GET  /api/state/{server}/{feature} SERVER_READ
POST /api/state/{server}/{feature}/delete SERVER_WRITE
POST /api/state/{server}/{feature}/rollback SERVER_WRITE
GET  /api/state/{server}/{feature}/{checkpoint} SERVER_READ
GET  /api/status ADMIN_READ
GET  /api/tools ANY_PRINCIPAL
GET  /api/tools/{name} ANY_PRINCIPAL
GET  /api/topics ADMIN_READ
GET  /api/topics/{topic} ADMIN_READ
GET  /api/topics/{topic}/envelopes ADMIN_READ
GET  /api/turns OWN_RECORDS
POST /api/turns OWN_RECORDS
GET  /api/turns/{id} OWN_RECORDS
GET  /api/views ADMIN_READ
GET  /api/views/suggestions/{principal:path} ADMIN_READ
GET  /api/views/{view} ADMIN_READ
GET  /api/webhooks ADMIN_READ
GET  /api/webhooks/{id} ADMIN_READ
POST /api/webhooks/{id}/delete ADMIN_WRITE
POST /api/webhooks/{id}/retry ADMIN_WRITE
"""

# What a principal without any grant is told by the routes that every principal may call.
TOLD_TO_STRANGERS: dict[tuple[str, str], tuple[object, int, object]] = {
    ("GET", "/api/accounts"): (None, 200, {"accounts": [], "servers": []}),
    ("POST", "/api/accounts/{account}/disconnect"): ({}, 404, None),
    ("GET", "/api/approvals"): (None, 200, {"approvals": []}),
    ("GET", "/api/approvals/{id}"): (None, 400, None),
    ("POST", "/api/approvals/{id}/answer"): ({"verdict": "accept"}, 404, None),
    ("POST", "/api/approvals/{id}/link"): ({}, 400, None),
    ("GET", "/api/calls"): (None, 200, {"calls": []}),
    ("POST", "/api/calls"): ({"tool": "no__such", "arguments": {}}, 200, None),
    ("GET", "/api/calls/{id}"): (None, 404, None),
    ("POST", "/api/calls/{id}/cancel"): ({}, 404, None),
    ("GET", "/api/push-subscriptions"): (
        None,
        200,
        {"public_key": None, "subscriptions": []},
    ),
    ("POST", "/api/push-subscriptions"): ({}, 400, None),
    ("POST", "/api/push-subscriptions/delete"): ({"id": "x"}, 200, {"id": "x", "deleted": False}),
    ("GET", "/api/search"): ("?query=read", 200, []),
    ("GET", "/api/search/categories"): (None, 200, {"categories": []}),
    ("GET", "/api/session"): (None, 200, None),
    ("GET", "/api/state"): (None, 200, {"state": []}),
    ("GET", "/api/tools"): (None, 200, {"tools": []}),
    ("GET", "/api/tools/{name}"): (None, 404, None),
    ("GET", "/api/turns"): (None, 200, {"turns": []}),
    ("POST", "/api/turns"): ({"text": "hello"}, 400, None),
    ("GET", "/api/turns/{id}"): (None, 404, None),
}


@dataclass
class Scene:
    """A gateway that knows three principals, and their keys."""

    visitor: Visitor
    keys: dict[str, str]

    @property
    def routes(self) -> list[ApiRoute[Any]]:
        return sorted(self.visitor.parts.api.routes, key=lambda route: route.address[::-1])

    async def send(self, route: ApiRoute[Any], party: str, given: object) -> tuple[int, Any]:
        """What a principal is told; `given` is the body, or the end of a path."""
        path = route.path.replace("{principal:path}", "agent:x").replace("{", "").replace("}", "")
        headers = {"content-type": "application/json"}
        headers |= bearer(self.keys[party]) if party else {}
        end = given if isinstance(given, str) else ""
        body = b"" if route.method == "GET" else json.dumps(given).encode()
        reply = await self.visitor.send(route.method, headers.items(), body, path + end)
        return reply.status, await reply.json()


@asynccontextmanager
async def serving() -> AsyncGenerator[Scene]:
    known = GivenOut()
    keys = {party: known.give(party) for party in (READER, WRITER, STRANGER)}
    chosen: dict[str, Any] = {"identity_mode": "required", "grants": GRANTS}
    async with visiting(register=known.register, **chosen) as visitor:
        yield Scene(visitor, keys)


async def test_every_route_has_the_permission_that_is_listed_here() -> None:
    """A new route is added to this list: whoever reviews it sees who may call it."""
    listed = [line.split() for line in ROUTES.split("\n") if line]
    async with serving() as scene:
        found = [[route.method, route.path, route.permission.name] for route in scene.routes]
        # Beside the router there is only the stream of approval requests: each reader sees its own.
        gateway: Any = scene.visitor.parts.http_app
        paths = list(gateway._endpoint_by_path)
    assert found == sorted(listed, key=lambda line: (line[1], line[0]))
    doors = sorted(path for path in paths if path.startswith(("/api", "/admin")))
    assert doors == [OPERATORS, STREAM_PATH]


async def test_no_route_serves_a_principal_without_its_permission() -> None:
    """The body is one that no route takes: the permission is asked for before it is read."""
    async with serving() as scene:
        for route in scene.routes:
            if not route.permission.verb:
                continue
            refused = 403 if route.permission.name.startswith("ADMIN") else 400
            other = READER if route.permission.verb == ADMIN_WRITE else WRITER
            for party in (STRANGER, other):
                status, told = await scene.send(route, party, {"no such field": 1})
                assert status == refused, (route.address, party, told)
                assert f"needs the grant {route.permission.verb} on" in told["error"]["message"]
            status, _ = await scene.send(route, "", {})
            assert status == 401, route.address


async def test_a_route_for_every_principal_shows_a_stranger_nothing() -> None:
    async with serving() as scene:
        open_routes = [route for route in scene.routes if not route.permission.verb]
        assert {route.address for route in open_routes} == set(TOLD_TO_STRANGERS)
        for route in open_routes:
            given, expected, content = TOLD_TO_STRANGERS[route.address]
            status, told = await scene.send(route, STRANGER, given)
            assert status == expected, (route.address, told)
            if content is not None:
                assert (told["tools"] if isinstance(content, list) else told) == content
            assert (await scene.send(route, "", given))[0] == 401, route.address


async def test_an_address_without_a_route_is_for_operators() -> None:
    async with serving() as scene:
        for method, path in (("GET", "/api/nothing"), ("POST", "/api/nothing"), ("PUT", "/api/x")):
            headers = {"content-type": "application/json", **bearer(scene.keys[STRANGER])}
            reply = await scene.visitor.send(method, headers.items(), b"{}", path)
            assert reply.status == 403, (method, path)


def test_every_permission_with_a_verb_names_a_target() -> None:
    targets = {each: each.target_in({"server": "files"}) for each in Permission if each.verb}
    assert set(targets.values()) == {"*", "files/*"}


async def test_the_openapi_document_has_every_route_with_its_permission() -> None:
    async with serving() as scene:
        route = next(each for each in scene.routes if each.path == OPENAPI_PATH)
        status, document = await scene.send(route, READER, "")
        routes = scene.routes
    assert status == 200
    validate(document, cls=OpenAPIV31SpecValidator)
    described = {
        (method.upper(), path): operation
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    }
    plain = {(each.method, each.path.replace(":path", "")): each for each in routes}
    streamed = described.pop(("GET", "/api/stream"))
    assert "any principal" in streamed["description"]
    assert "text/event-stream" in streamed["responses"]["200"]["content"]
    assert described.keys() == plain.keys()
    assert len({each["operationId"] for each in described.values()}) == len(described)
    for address, operation in described.items():
        verb = plain[address].permission.verb
        assert (f"`{verb}`" if verb else "any principal") in operation["description"], address
        answer = operation["responses"]["200"]["content"]["application/json"]["schema"]
        named = answer["$ref"].removeprefix("#/components/schemas/")
        assert document["components"]["schemas"][named]["properties"], address


async def test_a_route_that_declares_no_answer_cannot_be_described() -> None:
    async def answer(_: ApiRequest[EmptyQuery]) -> View:
        return {}

    route = ApiRoute("GET", "/api/x", Permission.ADMIN_READ, answer, EmptyQuery)
    with pytest.raises(TypeError, match="GET /api/x must declare the TypedDict"):
        describe_routes([route])


async def test_the_document_from_which_the_console_is_made_is_current() -> None:
    written = openapi.DOCUMENT.read_text(encoding="utf-8")
    assert written == await openapi.document(), "run python -m tests.docs.openapi"


async def test_the_openapi_document_describes_bodies_and_queries() -> None:
    async with serving() as scene:
        document: Any = describe_routes(scene.routes)
    body = document["paths"]["/api/keys"]["post"]["requestBody"]["content"]["application/json"]
    assert body["schema"]["additionalProperties"] is False
    assert body["schema"]["required"]
    query = document["paths"]["/api/search"]["get"]["parameters"]
    assert {"query"} <= {each["name"] for each in query if each["in"] == "query"}
