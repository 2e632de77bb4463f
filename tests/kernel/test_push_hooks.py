"""Webhooks that come in: only signed ones, each event once, and of no other shape than it may."""

import hmac
import json
from typing import Any

import pytest

from comity.kernel.live.push_hooks import Hook, InboundHooks, Taken
from comity.kernel.live.pushes import PushOptions
from comity.rules.pushes import LONGEST_TEXT
from comity.rules.rates import Rate
from comity.rules.webhooks import heading
from comity.wire.errors import MalformedMessage
from comity.wire.inbound_hooks import HookKind, Signing
from comity.wire.pushes import Goal, KeptPush, Route
from tests.kernel.pushed import NOW, Node

SECRET = b"a-secret-of-some-length"
BODY = {"ref": "main", "repository": {"full_name": "acme/api"}, "id": 7}
TURN = Route(Goal.TURN, "", "{/repository/full_name}")


class Door:
    """One webhook of each kind, over memory."""

    def __init__(self, options: PushOptions | None = None, **more: Any) -> None:
        self.node = Node(options=options)
        self.kept: list[KeptPush] = []
        hooks = [
            Hook("github", Signing(HookKind.GITHUB, (SECRET,)), TURN, **more),
            Hook("gitlab", Signing(HookKind.GITLAB, (SECRET,)), TURN, **more),
            Hook("standard", Signing(HookKind.STANDARD, (SECRET,)), TURN, **more),
            Hook("sensor", Signing(HookKind.PLAIN, (SECRET,), "x-sig"), TURN, **more),
        ]
        self.hooks = InboundHooks(hooks, self.node.pushes)

    async def github(self, body: Any = BODY, id: str = "d-1", **more: str) -> Taken:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        signature = "sha256=" + hmac.digest(SECRET, data, "sha256").hex()
        said = {"x-hub-signature-256": signature, "x-github-delivery": id, **more}
        return await self.take("github", said, data)

    async def take(self, name: str, headers: dict[str, str], body: bytes) -> Taken:
        told = {each.encode(): value.encode("latin-1") for each, value in headers.items()}
        taken = await self.hooks.take(name, told, body)
        await self.node.doing.finish()
        return taken

    async def last(self) -> KeptPush:
        return (await self.node.records.page())[0]


async def test_a_signed_webhook_is_kept_once_and_its_turn_begun() -> None:
    door = Door()
    assert await door.github() is Taken.KEPT
    assert await door.github() is Taken.KNOWN
    assert await door.github(id="d-2") is Taken.KEPT
    assert list(door.node.effects.done) == ["push:hook:github/d-1", "push:hook:github/d-2"]
    kept = await door.last()
    assert (kept.push.server, kept.push.id) == ("hook:github", "d-2")
    assert kept.route.conversation == "hook:github/acme/api"


async def test_what_is_not_signed_is_not_looked_at() -> None:
    door = Door()
    for headers in ({}, {"x-hub-signature-256": "sha256=00"}):
        assert await door.take("github", headers, b"\xff not json") is Taken.UNSIGNED
    assert await door.take("unknown", {}, b"{}") is Taken.UNSIGNED
    assert await door.take("", {}, b"{}") is Taken.UNSIGNED
    assert await door.node.records.page() == []
    assert set(door.node.types) == {"push_refused"}
    assert door.node.entries[0].details["outcome"] == "unsigned"


@pytest.mark.parametrize(
    "body",
    [b"", b"7", b'"x"', b"{", b"\xff", b"[" * 100 + b"]" * 100, b'{"a":1}{"b":2}', b"null"],
)
async def test_a_body_of_another_shape_is_refused_though_it_is_signed(body: bytes) -> None:
    with pytest.raises(MalformedMessage):
        await Door().github(body)


@pytest.mark.parametrize("id", ["", "x" * 201, "a\x01b"])
async def test_an_id_of_another_shape_is_refused(id: str) -> None:
    with pytest.raises(MalformedMessage):
        await Door().github(id=id)


async def test_gitlab_names_its_events_in_one_of_three_ways() -> None:
    door = Door()
    body, token = json.dumps(BODY).encode(), {"x-gitlab-token": SECRET.decode()}
    uuid = {"x-gitlab-event-uuid": "u-1"}
    assert await door.take("gitlab", {**token, **uuid, "idempotency-key": "k-1"}, body)
    assert (await door.last()).push.id == "k-1"
    assert await door.take("gitlab", {**token, **uuid}, body) is Taken.KEPT
    assert (await door.last()).push.id == "u-1"
    assert await door.take("gitlab", token, body) is Taken.KEPT
    assert (await door.last()).push.id.startswith("sha256-")
    assert await door.take("gitlab", token, body) is Taken.KNOWN


async def test_a_standard_webhook_that_is_sent_again_later_is_refused() -> None:
    door = Door()
    body = json.dumps(BODY).encode()
    said = dict(heading([SECRET], "s", "msg_1", NOW, body))
    assert await door.take("standard", said, body) is Taken.KEPT
    assert await door.take("standard", said, body) is Taken.KNOWN
    door.node.later(301)
    assert await door.take("standard", said, body) is Taken.UNSIGNED


async def test_a_sensor_is_known_by_its_body_or_where_an_operator_says() -> None:
    body = json.dumps(BODY).encode()
    said = {"x-sig": hmac.digest(SECRET, body, "sha256").hex(), "x-event": "e-9"}
    for id, found in (("", "sha256-"), ("/id", "7"), ("header:X-Event", "e-9")):
        door = Door(id=id)
        assert await door.take("sensor", said, body) is Taken.KEPT
        assert (await door.last()).push.id.startswith(found)
    for id in ("/missing", "/repository", "header:x-other"):
        with pytest.raises(MalformedMessage):
            await Door(id=id).take("sensor", said, body)


async def test_what_is_told_of_it_is_the_operators_template_or_the_body() -> None:
    door = Door(content="{type} on {/ref} of {/repository/full_name} ({event})")
    door.node.effects.problems = [MalformedMessage("kept as it was")]
    await door.github(**{"x-github-event": "push"})
    assert (await door.last()).push.content[0].text == "push on main of acme/api (d-1)"
    assert (await door.last()).push.origin == {"hook": "github", "type": "push"}
    plain = Door()
    plain.node.effects.problems = [MalformedMessage("kept as it was")]
    await plain.github({"x": "y" * 50_000})
    text = (await plain.last()).push.content[0].text
    assert text.startswith('{"x":"yyy')
    assert len(text) == LONGEST_TEXT + 1


async def test_webhooks_have_a_rate_too() -> None:
    door = Door(PushOptions(of_server=Rate(2, 60.0, 2)))
    found = [await door.github(id=f"d-{each}") for each in range(3)]
    assert found == [Taken.KEPT, Taken.KEPT, Taken.TOO_MANY]


async def test_no_secret_is_in_what_is_shown_of_a_hook() -> None:
    door = Door()
    await door.take("github", {}, b"{}")
    assert SECRET.decode() not in repr(door.hooks.__dict__) + str(door.node.entries)
