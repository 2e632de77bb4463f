"""Webhooks at /api/webhooks: seen, tried again and taken away by operators."""

from typing import Any

import pytest

from comity.errors import NOTHING_HERE, MalformedMessage
from comity.events.api import WebhooksApi
from comity.events.webhooks.model import HttpReply
from comity.mcp.actors import LOCAL
from tests.support.api_calls import call_route
from tests.support.cases import loop_over
from tests.support.hooked import URL, Hooked


async def ask(hooked: Hooked, method: str, *place: str) -> dict[str, Any]:
    api = WebhooksApi(hooked.hooks, hooked.subscribing)
    return await call_route(api.routes, method, "/".join(("/api/webhooks", *place)), actor=LOCAL)


async def test_operators_see_what_waits_and_what_failed_but_no_secret() -> None:
    hooked = Hooked()
    one = await hooked.subscribe(f"{URL}?token=s3cret")
    await hooked.wait(one, "e1", "e2")
    hooked.poster.replies["hooks.example.org"] = [HttpReply(413), HttpReply(500)]
    await hooked.round()
    (listed,) = (await ask(hooked, "GET"))["webhooks"]
    assert (listed["waiting"], listed["failed"], listed["last_error"]) == (1, 1, "http_5xx")
    assert (listed["place"], listed["may_be_posted"]) == ("https://hooks.example.org", True)
    shown = await ask(hooked, "GET", one.id)
    states = [(post["event"], post["state"], post["attempts"]) for post in shown["posts"]]
    assert states == [("e1", "failed", 1), ("e2", "waiting", 1)]
    assert "s3cret" not in str((listed, shown))
    assert "sealed" not in shown


async def test_operators_have_it_tried_again_and_end_it() -> None:
    hooked = Hooked()
    one = await hooked.subscribe()
    await hooked.wait(one, "e1")
    hooked.poster.replies["hooks.example.org"] = [HttpReply(413)]
    await hooked.round()
    assert (await ask(hooked, "POST", one.id, "retry"))["retried"] == 1
    await hooked.round()
    assert (await hooked.kept(one)).failed == 0
    assert (await ask(hooked, "POST", one.id, "delete"))["id"] == one.id
    assert await ask(hooked, "GET") == {"webhooks": []}


@loop_over(
    ("method", "place"),
    [("GET", ("sub_x",)), ("POST", ("sub_x", "retry")), ("POST", ()), ("POST", ("a", "b", "c"))],
)
async def test_what_is_not_there_is_told(method: str, place: tuple[str, ...]) -> None:
    with pytest.raises(MalformedMessage) as refused:
        await ask(Hooked(), method, *place)
    assert refused.value.fault is NOTHING_HERE
