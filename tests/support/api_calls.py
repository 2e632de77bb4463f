"""Requests to routes of the operator API, without a gateway around them."""

from collections.abc import Mapping
from typing import Any

from comity.http.api import ApiRouter, ApiRoutes
from comity.mcp.actors import LOCAL_OPERATOR, Actor


def allow_everything(actor: Actor, verb: str, target: str) -> None:
    """Authorize every request."""
    del actor, verb, target


async def call_route(
    routes: ApiRoutes,
    method: str,
    path: str,
    given: Mapping[str, object] | None = None,
    actor: Actor = LOCAL_OPERATOR,
) -> dict[str, Any]:
    """The answer of a route; `given` is its query or its body."""
    router = ApiRouter(allow_everything, routes)
    return dict(await router.answer(method, path, given or {}, actor))
