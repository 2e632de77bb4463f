"""The router of the operator API: which route serves a request, and for whom."""

from typing import Any, Literal, cast

import pytest

from comity.errors import (
    ACCESS_DENIED,
    INVALID_PARAMS,
    NOTHING_HERE,
    UNAUTHENTICATED,
    MalformedMessage,
)
from comity.http.api import ApiHandler, ApiRequest, ApiRoute, ApiRouter, Permission, View
from comity.http.api_input import EmptyBody, EmptyQuery, RequestQuery
from comity.http.asgi import UNSHOWN
from comity.mcp.actors import ADMIN_READ, ADMIN_WRITE, ANONYMOUS, Actor
from tests.support.api_calls import allow_everything

AGENT = Actor("agent:ci")


class NeededQuery(RequestQuery, frozen=True):
    """A query that must have a name."""

    name: str


async def show_path(request: ApiRequest[Any]) -> View:
    return {"by": request.actor.party, **request.path}


def read(path: str, permission: Permission = Permission.ADMIN_READ) -> ApiRoute[EmptyQuery]:
    return ApiRoute("GET", path, permission, show_path, EmptyQuery)


def named(word: str) -> ApiHandler[EmptyQuery]:
    async def handle(_: ApiRequest[EmptyQuery]) -> View:
        return {"served": word}

    return handle


async def ask(router: ApiRouter, path: str, method: str = "GET", **given: object) -> View:
    return await router.answer(method, path, given, AGENT)


async def test_the_parameters_of_a_path_are_segments() -> None:
    router = ApiRouter(allow_everything, [read("/api/a/{one}/{two}")])
    assert await ask(router, "/api/a/x/y.z") == {"by": "agent:ci", "one": "x", "two": "y.z"}
    for path in ("/api/a/x", "/api/a/x/", "/api/a//y", "/api/a/x/y/z", "/api/a/x/y/"):
        with pytest.raises(MalformedMessage) as refused:
            await ask(router, path)
        assert refused.value.fault is NOTHING_HERE


async def test_a_parameter_of_several_segments_is_told_whole() -> None:
    router = ApiRouter(allow_everything, [read("/api/p/{party:path}/enable")])
    for party in ("agent:ci", "person:https://issuer/ana", "a\nb"):
        assert (await ask(router, f"/api/p/{party}/enable"))["party"] == party
    with pytest.raises(MalformedMessage, match="no such path"):
        await ask(router, "/api/p//enable")


async def test_what_a_path_means_in_a_regular_expression_means_nothing() -> None:
    router = ApiRouter(allow_everything, [read("/api/a.b/{one}")])
    with pytest.raises(MalformedMessage, match="no such path"):
        await ask(router, "/api/axb/1")


async def test_an_address_without_parameters_comes_first() -> None:
    own = Permission.OWN_RECORDS
    router = ApiRouter(
        allow_everything,
        [
            ApiRoute("GET", "/api/a/{id}", own, named("one"), EmptyQuery),
            ApiRoute("GET", "/api/a/spent", own, named("spent"), EmptyQuery),
        ],
    )
    assert await ask(router, "/api/a/spent") == {"served": "spent"}
    assert await ask(router, "/api/a/{id}") == {"served": "one"}


@pytest.mark.parametrize(
    ("permission", "asked"),
    [
        (Permission.ADMIN_READ, [(ADMIN_READ, "*")]),
        (Permission.ADMIN_WRITE, [(ADMIN_WRITE, "*")]),
        (Permission.SERVER_READ, [(ADMIN_READ, "files/*")]),
        (Permission.SERVER_WRITE, [(ADMIN_WRITE, "files/*")]),
        (Permission.ANY_PRINCIPAL, []),
        (Permission.OWN_RECORDS, []),
    ],
)
async def test_a_route_asks_for_the_permission_that_it_names(
    permission: Permission, asked: list[tuple[str, str]]
) -> None:
    demanded: list[tuple[str, str]] = []

    def authorize(_: Actor, verb: str, target: str) -> None:
        demanded.append((verb, target))

    await ask(ApiRouter(authorize, [read("/api/{server}", permission)]), "/api/files")
    assert demanded == asked


async def test_who_lacks_the_permission_is_refused_before_the_input_is_read() -> None:
    served: list[str] = []

    async def handle(request: ApiRequest[NeededQuery]) -> View:
        served.append(request.input.name)
        return {}

    def refuse(_: Actor, verb: str, target: str) -> None:
        raise MalformedMessage(f"no grant of {verb} on {target}", ACCESS_DENIED)

    route = ApiRoute("GET", "/api/a", Permission.ADMIN_READ, handle, NeededQuery)
    with pytest.raises(MalformedMessage) as refused:
        await ask(ApiRouter(refuse, [route]), "/api/a")
    assert (refused.value.fault, served) == (ACCESS_DENIED, [])
    with pytest.raises(MalformedMessage, match="name is missing") as refused:
        await ask(ApiRouter(allow_everything, [route]), "/api/a")
    assert (refused.value.fault, served) == (INVALID_PARAMS, [])


@pytest.mark.parametrize("permission", Permission)
async def test_no_route_serves_a_request_without_a_principal(permission: Permission) -> None:
    router = ApiRouter(allow_everything, [read("/api/{server}", permission)])
    for actor in (ANONYMOUS, UNSHOWN):
        with pytest.raises(MalformedMessage) as refused:
            await router.answer("GET", "/api/files", {}, actor)
        assert refused.value.fault is UNAUTHENTICATED


@pytest.mark.parametrize("permission", [None, "admin/read", ("admin/read", "*")])
def test_a_route_cannot_be_made_without_a_permission(permission: object) -> None:
    with pytest.raises(TypeError, match="names no permission"):
        read("/api/a", cast("Permission", permission))
    with pytest.raises(TypeError):
        cast("Any", ApiRoute)("GET", "/api/a", handler=show_path, input=EmptyQuery)


@pytest.mark.parametrize(("method", "kind"), [("GET", EmptyBody), ("POST", EmptyQuery)])
def test_a_get_takes_a_query_and_a_post_a_body(
    method: Literal["GET", "POST"], kind: type[Any]
) -> None:
    with pytest.raises(TypeError, match="needs a Request"):
        ApiRoute(method, "/api/a", Permission.ADMIN_READ, show_path, kind)


def test_no_two_routes_serve_the_same() -> None:
    with pytest.raises(ValueError, match="two routes serve GET /api/a"):
        ApiRouter(allow_everything, [read("/api/a"), read("/api/a")])
