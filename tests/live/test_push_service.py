"""Pushes are admitted once, as far as an operator lets them, and done once."""

import asyncio
import hmac
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec import Raw

from comity.audit import events
from comity.audit.log import AuditLog
from comity.errors import EXHAUSTED, INVALID_PARAMS, UPSTREAM_DOWN, MalformedMessage, Unavailable
from comity.events.model import EventFilter, GatewayEvent, Severity
from comity.events.webhooks.model import build_signature_headers
from comity.inference.messages import ContentBlock, to_text_content
from comity.live.host import LiveMessage, LiveServer
from comity.live.pushes.model import (
    MAX_TEXT_LENGTH,
    PUSH,
    Push,
    PushRoute,
    PushRouteRule,
    PushStore,
    PushTarget,
    StoredPush,
    WebhookKind,
    WebhookSignature,
)
from comity.live.pushes.service import (
    MAX_ACTIVE,
    PRUNE_INTERVAL,
    Effect,
    InboundWebhook,
    InboundWebhooks,
    PushService,
    PushSettings,
    PushTimeouts,
    PushWorker,
    WebhookOutcome,
    build_effects,
)
from comity.live.turns.model import TurnHandle, TurnOrigin, TurnRequest
from comity.mcp.mcpl import FeatureSet, FeatureUse
from comity.toolkit.jobs import JobState
from comity.toolkit.resilience import RateLimit, RetrySchedule
from comity.topics.envelope import EnvelopeLimits
from comity.topics.rules import TopicAccess as Entrance
from comity.topics.service import TopicService
from comity.topics.topic import TopicMessage, TopicSettings
from tests.support.carriers import settled
from tests.support.hooked import ANA as WATCHER
from tests.support.hooked import NOW as HOOKED_AT
from tests.support.hooked import Hooked
from tests.support.inline_store import inline_records
from tests.support.topic_house import ANA, BEA, USUAL, House
from tests.topics.test_cluster import nodes

NOW = datetime(2026, 7, 28, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
TURN = PushRoute(PushTarget.TURN, "", "ops", "agent:ops")
TIMES = PushTimeouts(
    lease=30 * SECOND,
    deadline=10 * SECOND,
    retries=RetrySchedule(SECOND, 8 * SECOND, give_up_after=60 * SECOND),
)
ROWS = (
    PushRouteRule("ci", "ci.builds", TURN),
    PushRouteRule("ci", "ci.noise", PushRoute(PushTarget.NOTHING)),
    PushRouteRule("ci", "ci.told", PushRoute(PushTarget.EVENTS)),
)


class Effects:
    """What was brought about, in order; each key counts once, as turns do."""

    def __init__(self) -> None:
        self.tried: list[str] = []
        self.done: dict[str, str] = {}
        self.problems: list[Exception] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self, kept: StoredPush) -> str:
        self.tried.append(kept.push.id)
        await self.gate.wait()
        if self.problems:
            raise self.problems.pop(0)
        return self.done.setdefault(kept.push.key, f"inf_{len(self.done) + 1}")


class Node:
    """One node; several can have one store."""

    def __init__(
        self,
        records: PushStore | None = None,
        options: PushSettings | None = None,
        rows: Sequence[PushRouteRule] = ROWS,
        effects: Effects | None = None,
        times: PushTimeouts = TIMES,
    ) -> None:
        self.now = NOW
        self.time = 100.0
        self.effects = effects or Effects()
        self.records = records or inline_records().pushes
        self.entries: list[events.AuditEvent] = []
        journal = AuditLog(inline_records().audit_log, "n", clock=lambda: self.now)
        journal.event_listeners.append(self.entries.append)
        brought: dict[PushTarget, Effect] = dict.fromkeys(PushTarget, self.effects)
        self.doing = PushWorker(self.records, brought, journal, lambda: self.now, times)
        self.pushes = PushService(rows, self.doing, journal, options, lambda: self.time)

    async def push(self, id: str, feature: str = "ci.builds", **more: Any) -> dict[str, Any]:
        said = {
            "featureSet": feature,
            "eventId": id,
            "timestamp": "2026-07-28T11:59:00Z",
            "payload": {"content": [{"type": "text", "text": f"secret words of {id}"}]},
            **more,
        }
        return dict(await self.pushes.answer(told(said, feature)))

    async def round(self) -> None:
        await self.doing.runner.start_due_jobs()
        await self.doing.runner.finish()

    def later(self, seconds: float) -> None:
        self.now += seconds * SECOND
        self.time += seconds

    @property
    def types(self) -> list[str]:
        return [each.type.removeprefix("dev.comity.") for each in self.entries]


def told(said: Any, feature: str = "ci.builds", server: str = "ci") -> LiveMessage:
    by = cast("LiveServer", SimpleNamespace(server=server))
    allowed = FeatureSet(feature, "", frozenset({FeatureUse.PUSH}))
    return LiveMessage(by, PUSH, Raw(json.dumps(said).encode()), 1, allowed)


class Lately:
    """Who knows at all nodes what was there lately; or does not answer."""

    def __init__(self) -> None:
        self.keys: set[str] = set()
        self.is_away = False

    async def is_first(self, key: str) -> bool:
        if self.is_away:
            raise Unavailable("NATS is away")
        is_first = key not in self.keys
        self.keys.add(key)
        return is_first


async def test_a_push_begins_its_turn_once_and_is_told_which() -> None:
    node = Node()
    assert await node.push("e1") == {"accepted": True, "inferenceId": "inf_1"}
    kept = await node.records.get("ci", "e1")
    assert kept is not None
    assert (kept.state, kept.inference) == (JobState.DONE, "inf_1")
    again = await node.push("e1")
    assert (again["accepted"], again["inferenceId"]) == (False, "inf_1")
    assert again["reason"].startswith("duplicate")
    assert node.effects.tried == ["e1"]
    assert node.types == ["push_received", "push_completed"]


async def test_of_many_at_once_one_is_accepted() -> None:
    node = Node()
    answers = await asyncio.gather(*(node.push("e1") for _ in range(20)))
    assert [each["accepted"] for each in answers].count(True) == 1
    assert node.effects.tried == ["e1"]


async def test_what_nobody_routes_is_not_accepted_and_not_kept() -> None:
    node = Node()
    answer = await node.push("e1", "ci.other")
    assert (answer["accepted"], answer["reason"][:8]) == (False, "no route")
    assert await node.records.page() == []
    assert node.types == ["push_refused"]


async def test_what_is_routed_to_nothing_is_accepted_and_counts_as_done() -> None:
    node = Node()
    assert await node.push("e1", "ci.noise") == {"accepted": True}
    assert node.effects.tried == []
    assert (await node.push("e1", "ci.noise"))["accepted"] is False
    kept = await node.records.get("ci", "e1")
    assert kept is not None
    assert kept.state is JobState.DONE


async def test_who_waits_for_no_turn_is_answered_before_it_is_done() -> None:
    node = Node()
    node.effects.gate.clear()
    assert await node.push("e1", "ci.told") == {"accepted": True}
    node.effects.gate.set()
    await node.doing.runner.finish()
    assert list(node.effects.done) == ["push:ci/e1"]


async def test_a_server_pushes_no_more_in_a_minute_than_it_may() -> None:
    node = Node(options=PushSettings(server_rate=RateLimit(3, 60.0, 3)))
    answers = [await node.push(f"e{each}") for each in range(5)]
    assert [each["accepted"] for each in answers] == [True] * 3 + [False] * 2
    assert answers[3]["reason"].startswith("rate: ")
    node.later(20)
    # What was refused for its number was not kept, so that it can come again.
    assert (await node.push("e3"))["accepted"] is True


async def test_each_feature_set_has_a_rate_of_its_own() -> None:
    node = Node(options=PushSettings(feature_set_rate=RateLimit(2, 60.0, 2)))
    builds = [(await node.push(f"e{each}"))["accepted"] for each in range(3)]
    assert builds == [True, True, False]
    assert (await node.push("n", "ci.noise"))["accepted"] is True


async def test_a_flood_is_written_down_in_few_words() -> None:
    node = Node(options=PushSettings(server_rate=RateLimit(1, 60.0, 1)))
    for each in range(1_000):
        await node.push(f"e{each}")
    assert node.types.count("push_refused") <= 100


async def test_a_push_that_is_too_large_is_an_error() -> None:
    node = Node(options=PushSettings(max_bytes=500))
    with pytest.raises(MalformedMessage) as refused:
        await node.push("e1", origin={"x": "y" * 500})
    assert refused.value.fault is INVALID_PARAMS


async def test_no_server_pushes_in_the_name_of_a_webhook() -> None:
    with pytest.raises(MalformedMessage):
        await Node().pushes.answer(told({}, server="hook:github"))


async def test_no_more_wait_than_there_is_room_for_and_the_server_is_told() -> None:
    node = Node(options=PushSettings(max_waiting=1))
    node.effects.problems = [Unavailable("away", EXHAUSTED)] * 9
    await node.push("e1")
    answer = await node.push("e2")
    assert (answer["accepted"], "wait already" in answer["reason"]) == (False, True)


async def test_no_word_of_a_push_is_in_the_journal() -> None:
    node = Node()
    await node.push("e1", origin={"token": "hidden"})
    await node.push("e2", "ci.other")
    assert "secret words" not in str(node.entries)
    assert "hidden" not in str(node.entries)


# Several nodes
def two(options: PushSettings | None = None) -> tuple[Node, Node, Lately]:
    records, effects, lately = inline_records().pushes, Effects(), Lately()
    nodes = [Node(records, options, effects=effects) for _ in range(2)]
    for node in nodes:
        node.pushes.first_seen = lately
    return nodes[0], nodes[1], lately


async def test_what_one_node_took_another_knows() -> None:
    one, other, _ = two()
    await one.push("e1")
    assert (await other.push("e1"))["inferenceId"] == "inf_1"
    assert one.effects.tried == ["e1"]


async def test_what_a_node_took_that_died_before_it_was_kept_is_taken_again() -> None:
    one, _, lately = two()
    lately.keys.add("push:ci/e1")
    assert (await one.push("e1"))["accepted"] is True


async def test_without_jetstream_the_store_knows_enough() -> None:
    one, other, lately = two()
    lately.is_away = True
    assert (await one.push("e1"))["accepted"] is True
    assert (await other.push("e1"))["accepted"] is False


async def test_without_a_store_jetstream_is_believed_and_needed() -> None:
    fleeting = PushSettings(is_durable=False)
    one, _, lately = two(fleeting)
    other = Node(options=fleeting)
    other.pushes.first_seen = lately
    assert (await one.push("e1"))["accepted"] is True
    assert (await other.push("e1"))["accepted"] is False
    lately.is_away = True
    with pytest.raises(Unavailable):
        await other.push("e2")


AWAY = Unavailable("away", EXHAUSTED)


async def kept(node: Node, id: str = "e1") -> StoredPush:
    found = await node.records.get("ci", id)
    assert found is not None
    return found


async def test_what_fails_is_tried_again_when_it_is_due() -> None:
    node = Node()
    node.effects.problems = [AWAY, AWAY]
    assert await node.push("e1") == {"accepted": True}
    assert (await kept(node)).last_error == "away"
    await node.round()
    assert node.effects.tried == ["e1"], "it is not due"
    for seconds in (1, 2):
        node.later(seconds)
        await node.round()
    assert node.effects.tried == ["e1"] * 3
    assert (await kept(node)).state is JobState.DONE
    assert node.types == ["push_received", "push_completed"]


async def test_what_cannot_be_done_at_all_fails_at_once_and_is_written_down() -> None:
    node = Node()
    node.effects.problems = [MalformedMessage("no such conversation", INVALID_PARAMS)]
    await node.push("e1")
    found = await kept(node)
    assert (found.state, found.last_error) == (JobState.FAILED, "no such conversation")
    assert node.types == ["push_received", "push_failed"]
    assert await node.records.retry(found.number, node.now)
    await node.round()
    assert (await kept(node)).state is JobState.DONE


async def test_what_is_tried_for_too_long_has_failed() -> None:
    node = Node()
    node.effects.problems = [AWAY] * 99
    await node.push("e1")
    for _ in range(20):
        node.later(9)
        await node.round()
    assert (await kept(node)).state is JobState.FAILED


async def test_a_bug_in_one_effect_keeps_no_other_from_being_done() -> None:
    node = Node()
    node.effects.problems = [ValueError("a bug")]
    await node.push("e1")
    assert (await node.push("e2"))["inferenceId"] == "inf_1"
    found = await kept(node)
    assert (found.state, "bug" in found.last_error) == (JobState.WAITING, True)


async def test_what_takes_too_long_is_given_up_and_tried_again() -> None:
    node = Node(times=PushTimeouts(deadline=SECOND / 50, retries=TIMES.retries))
    node.effects.gate.clear()
    await node.push("e1")
    assert "too long" in (await kept(node)).last_error


async def test_what_a_dead_node_had_claimed_another_does_when_its_time_is_over() -> None:
    records, effects = inline_records().pushes, Effects()
    dead, heir = Node(records, effects=effects), Node(records, effects=effects)
    effects.gate.clear()
    pushing = asyncio.ensure_future(dead.push("e1"))
    while not effects.tried:
        await asyncio.sleep(0)
    await heir.round()
    assert effects.tried == ["e1"], "it is the other's"
    heir.later(31)
    await heir.doing.runner.start_due_jobs()
    effects.gate.set()
    await asyncio.gather(heir.doing.runner.finish(), pushing)
    # Both have tried, and it was done once; what the one that was late says counts no more.
    assert effects.tried == ["e1", "e1"]
    assert effects.done == {"push:ci/e1": "inf_1"}
    assert (await kept(heir)).inference == "inf_1"
    assert [*dead.types, *heir.types].count("push_completed") == 1


async def test_who_ends_leaves_what_it_held_to_others_at_once() -> None:
    records, effects = inline_records().pushes, Effects()
    one, other = Node(records, effects=effects), Node(records, effects=effects)
    effects.gate.clear()
    pushing = asyncio.ensure_future(one.push("e1"))
    while not effects.tried:
        await asyncio.sleep(0)
    await one.doing.runner.stop()
    assert (await pushing)["accepted"] is True
    effects.gate.set()
    await other.round()
    assert effects.done == {"push:ci/e1": "inf_1"}


async def test_it_goes_on_by_itself_and_what_is_old_is_forgotten() -> None:
    node = Node(
        times=PushTimeouts(poll_interval=SECOND / 1000, retention=SECOND, retries=TIMES.retries)
    )
    node.effects.problems = [AWAY]
    await node.push("e1")
    node.later(1)
    running = asyncio.ensure_future(node.doing.runner.run())
    async with asyncio.timeout(20):
        while (await kept(node)).state is not JobState.DONE:
            await asyncio.sleep(0.001)
        node.later(PRUNE_INTERVAL.total_seconds())
        node.doing.runner.wakeup.set()
        while await node.records.page():
            await asyncio.sleep(0.001)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await node.doing.runner.stop()


async def test_no_more_is_begun_at_once_than_a_node_can_do_and_the_rest_is_not_forgotten() -> None:
    node = Node(
        options=PushSettings(server_rate=None),
        times=PushTimeouts(poll_interval=SECOND * 60, retries=TIMES.retries),
    )
    node.effects.gate.clear()
    count = 3 * MAX_ACTIVE
    for each in range(count):
        assert (await node.push(f"e{each}", "ci.told"))["accepted"] is True
    assert len(node.effects.tried) == MAX_ACTIVE
    running = asyncio.ensure_future(node.doing.runner.run())
    node.effects.gate.set()
    async with asyncio.timeout(20):
        while len(node.effects.done) < count:
            await asyncio.sleep(0.001)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await node.doing.runner.stop()
    assert len(node.effects.tried) == count


SECRET = b"a-secret-of-some-length"
BODY = {"ref": "main", "repository": {"full_name": "acme/api"}, "id": 7}
HOOK_TURN = PushRoute(PushTarget.TURN, "", "{/repository/full_name}")


class Door:
    """One webhook of each kind, over memory."""

    def __init__(self, options: PushSettings | None = None, **more: Any) -> None:
        self.node = Node(options=options)
        self.kept: list[StoredPush] = []
        hooks = [
            InboundWebhook(
                "github", WebhookSignature(WebhookKind.GITHUB, (SECRET,)), HOOK_TURN, **more
            ),
            InboundWebhook(
                "gitlab", WebhookSignature(WebhookKind.GITLAB, (SECRET,)), HOOK_TURN, **more
            ),
            InboundWebhook(
                "standard", WebhookSignature(WebhookKind.STANDARD, (SECRET,)), HOOK_TURN, **more
            ),
            InboundWebhook(
                "sensor", WebhookSignature(WebhookKind.PLAIN, (SECRET,), "x-sig"), HOOK_TURN, **more
            ),
        ]
        self.hooks = InboundWebhooks(hooks, self.node.pushes)

    async def github(self, body: Any = BODY, id: str = "d-1", **more: str) -> WebhookOutcome:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        signature = "sha256=" + hmac.digest(SECRET, data, "sha256").hex()
        said = {"x-hub-signature-256": signature, "x-github-delivery": id, **more}
        return await self.take("github", said, data)

    async def take(self, name: str, headers: dict[str, str], body: bytes) -> WebhookOutcome:
        told = {each.encode(): value.encode("latin-1") for each, value in headers.items()}
        taken = await self.hooks.receive(name, told, body)
        await self.node.doing.runner.finish()
        return taken

    async def last(self) -> StoredPush:
        return (await self.node.records.page())[0]


async def test_a_signed_webhook_is_kept_once_and_its_turn_begun() -> None:
    door = Door()
    assert await door.github() is WebhookOutcome.KEPT
    assert await door.github() is WebhookOutcome.KNOWN
    assert await door.github(id="d-2") is WebhookOutcome.KEPT
    assert list(door.node.effects.done) == ["push:hook:github/d-1", "push:hook:github/d-2"]
    kept = await door.last()
    assert (kept.push.server, kept.push.id) == ("hook:github", "d-2")
    assert kept.route.conversation == "hook:github/acme/api"


async def test_what_is_not_signed_is_not_looked_at() -> None:
    door = Door()
    for headers in ({}, {"x-hub-signature-256": "sha256=00"}):
        assert await door.take("github", headers, b"\xff not json") is WebhookOutcome.UNSIGNED
    for name in ("unknown", ""):
        assert await door.take(name, {}, b"{}") is WebhookOutcome.UNSIGNED
    assert await door.node.records.page() == []
    assert set(door.node.types) == {"push_refused"}
    assert door.node.entries[0].details["outcome"] == "unsigned"
    assert SECRET.decode() not in repr(door.hooks.__dict__) + str(door.node.entries)


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
    assert await door.take("gitlab", {**token, **uuid}, body) is WebhookOutcome.KEPT
    assert (await door.last()).push.id == "u-1"
    assert await door.take("gitlab", token, body) is WebhookOutcome.KEPT
    assert (await door.last()).push.id.startswith("sha256-")
    assert await door.take("gitlab", token, body) is WebhookOutcome.KNOWN


async def test_a_standard_webhook_that_is_sent_again_later_is_refused() -> None:
    door = Door()
    body = json.dumps(BODY).encode()
    said = dict(build_signature_headers([SECRET], "s", "msg_1", NOW, body))
    assert await door.take("standard", said, body) is WebhookOutcome.KEPT
    assert await door.take("standard", said, body) is WebhookOutcome.KNOWN
    door.node.later(301)
    assert await door.take("standard", said, body) is WebhookOutcome.UNSIGNED


async def test_a_sensor_is_known_by_its_body_or_where_an_operator_says() -> None:
    body = json.dumps(BODY).encode()
    said = {"x-sig": hmac.digest(SECRET, body, "sha256").hex(), "x-event": "e-9"}
    for id, found in (("", "sha256-"), ("/id", "7"), ("header:X-Event", "e-9")):
        door = Door(id=id)
        assert await door.take("sensor", said, body) is WebhookOutcome.KEPT
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
    assert len(text) == MAX_TEXT_LENGTH + 1


async def test_webhooks_have_a_rate_too() -> None:
    door = Door(PushSettings(server_rate=RateLimit(2, 60.0, 2)))
    found = [await door.github(id=f"d-{each}") for each in range(3)]
    assert found == [WebhookOutcome.KEPT, WebhookOutcome.KEPT, WebhookOutcome.TOO_MANY]


BUILD_BROKE = Push(
    "ci", "evt-1", HOOKED_AT, to_text_content("the build broke"), "ci.builds", {"repo": "a"}
)
HOOK = replace(BUILD_BROKE, server="hook:github", feature="")


def to(goal: PushTarget, push: Push = BUILD_BROKE, **more: Any) -> StoredPush:
    return StoredPush(push, PushRoute(goal, **more), HOOKED_AT, HOOKED_AT)


def effect(
    goal: PushTarget, topics: TopicService | None = None, turns: "Turns | None" = None
) -> Effect:
    """How a push is done that goes there."""
    turns_of = (lambda: turns) if turns else Turns
    return build_effects(Hooked().plane, topics or House().topics, turns_of, "agent:host")[goal]


@dataclass
class Turns:
    """Who takes turns; each cause has one."""

    begun: dict[str, str] = field(default_factory=dict[str, str])
    errands: list[TurnRequest] = field(default_factory=list[TurnRequest])

    async def start(self, request: TurnRequest) -> TurnHandle:
        self.errands.append(request)
        is_new = request.cause.key not in self.begun
        inference = self.begun.setdefault(request.cause.key, f"inf_{len(self.begun) + 1}")
        return TurnHandle(inference, request.conversation, is_new)

    async def wait_for_output(self, inference: str) -> str:
        return inference


async def test_a_turn_is_begun_once_for_a_push() -> None:
    turns = Turns()
    begin = effect(PushTarget.TURN, turns=turns)
    kept = to(PushTarget.TURN, conversation="ops", principal="agent:ops", reply_to=("topic:ops",))
    assert [await begin(kept) for _ in range(3)] == ["inf_1"] * 3
    errand = turns.errands[0]
    assert (errand.conversation, errand.author) == ("ops", "server:ci")
    assert errand.say_in == ("topic:ops",)
    cause = errand.cause
    assert (cause.origin, cause.key, cause.party) == (TurnOrigin.PUSH, "push:ci/evt-1", "agent:ops")
    assert (cause.server, cause.feature) == ("ci", "ci.builds")
    # What a webhook brings about is no server's doing, and in the usual name.
    await begin(to(PushTarget.TURN, HOOK, conversation="ops"))
    errand = turns.errands[-1]
    assert (errand.cause.server, errand.cause.party) == ("", "agent:host")
    assert errand.author == "system:hook:github"


async def test_no_turn_is_begun_without_content_or_while_nobody_takes_turns() -> None:
    with pytest.raises(MalformedMessage):
        await effect(PushTarget.TURN)(to(PushTarget.TURN, replace(BUILD_BROKE, content=())))
    nobody = build_effects(Hooked().plane, House().topics, lambda: None)
    with pytest.raises(Unavailable):
        await nobody[PushTarget.TURN](to(PushTarget.TURN, conversation="ops"))
    # Until it is known who has subscribed, posts are tried again too.
    with pytest.raises(Unavailable):
        await nobody[PushTarget.WEBHOOKS](to(PushTarget.WEBHOOKS))


# Topics
class Elsewhere:
    """The same topics at other nodes, which can be away."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.is_away = False

    def send(self, topic: str, message: TopicMessage) -> None:
        if self.is_away:
            raise Unavailable("away", UPSTREAM_DOWN)
        self.said.append(message.envelope.id)

    def on_joined(self, topic: str, member: object) -> None: ...
    def on_left(self, topic: str, party: str) -> None: ...


async def test_a_push_is_said_in_its_topic_once_and_names_its_server() -> None:
    house = House()
    ana, bea = await house.joins(ANA), await house.joins(BEA)
    say = effect(PushTarget.TOPIC, house.topics)
    for _ in range(3):
        assert await say(to(PushTarget.TOPIC, place="ops")) == ""
    about = {"server": "ci", "event": "evt-1", "feature_set": "ci.builds"}
    for ear in (ana, bea):
        (heard,) = ear.heard("chat")
        assert heard["from"] == "server:ci"
        assert (heard["payload"]["text"], heard["payload"]["source"]) == ("the build broke", about)
    picture = replace(BUILD_BROKE, id="e2", content=(ContentBlock("image", uri="https://x/y.png"),))
    await say(to(PushTarget.TOPIC, picture, place="ops"))
    assert "y.png" in ana.heard("chat")[-1]["payload"]["text"]


async def test_one_push_has_the_same_envelope_at_every_node_and_two_have_two() -> None:
    ids: list[str] = []
    for _ in range(2):
        house = House()
        ear = await house.joins(ANA)
        say = effect(PushTarget.TOPIC, house.topics)
        await say(to(PushTarget.TOPIC, place="ops"))
        await say(to(PushTarget.TOPIC, replace(BUILD_BROKE, id="evt-2"), place="ops"))
        ids += [each["id"] for each in ear.heard("chat")]
    assert ids[:2] == ids[2:]
    assert len(set(ids)) == 2


async def test_where_other_nodes_cannot_be_reached_nobody_hears_it_until_all_do() -> None:
    house, elsewhere = House(), Elsewhere()
    house.topics.remote_topic = elsewhere
    ear = await house.joins(ANA)
    say = effect(PushTarget.TOPIC, house.topics)
    elsewhere.is_away = True
    with pytest.raises(Unavailable):
        await say(to(PushTarget.TOPIC, place="ops"))
    assert ear.heard("chat") == []
    elsewhere.is_away = False
    await say(to(PushTarget.TOPIC, place="ops"))
    assert elsewhere.said == [each["id"] for each in ear.heard("chat")]


async def test_a_topic_in_which_nobody_is_is_forgotten_again() -> None:
    house = House()
    await effect(PushTarget.TOPIC, house.topics)(to(PushTarget.TOPIC, place="ops"))
    house.topics.look()
    assert not house.topics.topics


async def test_what_is_too_long_for_a_topic_fails_and_is_not_tried_again() -> None:
    terms = TopicSettings(Entrance.PUBLIC, USUAL, limits=EnvelopeLimits(2_000, 64))
    house = House(terms)
    say = effect(PushTarget.TOPIC, house.topics)
    with pytest.raises(MalformedMessage):
        await say(
            to(
                PushTarget.TOPIC,
                replace(BUILD_BROKE, content=to_text_content("x" * 5_000)),
                place="ops",
            )
        )


# Events
async def test_a_push_is_told_to_who_follows_it_once_and_as_its_servers_word() -> None:
    hooked = Hooked()
    heard: list[GatewayEvent] = []
    hooked.plane.post = hooked.intake.post
    hooked.plane.subscribe(EventFilter(("push.received",)), WATCHER, heard.append)
    tell = build_effects(hooked.plane, House().topics, Turns)[PushTarget.EVENTS]
    for _ in range(3):
        await tell(to(PushTarget.EVENTS))
    (event,) = heard
    assert (event.id, event.channel, event.source) == ("evt-1", "push.received", "ci")
    assert event.data["content"] == [{"type": "text", "text": "the build broke"}]
    assert event.data["event_id"] == "evt-1"


async def test_what_a_server_told_as_an_event_before_is_the_same_fact() -> None:
    """D-99"""
    hooked = Hooked()
    heard: list[GatewayEvent] = []
    hooked.plane.post = hooked.intake.post
    hooked.plane.subscribe(EventFilter(("*",)), WATCHER, heard.append)
    first = GatewayEvent("evt-1", "ci.broke", HOOKED_AT, Severity.INFO, {}, "ci", source="ci")
    hooked.plane.publish(first)
    await build_effects(hooked.plane, House().topics, Turns)[PushTarget.EVENTS](
        to(PushTarget.EVENTS)
    )
    other = replace(BUILD_BROKE, server="cd")
    await build_effects(hooked.plane, House().topics, Turns)[PushTarget.EVENTS](
        to(PushTarget.EVENTS, other)
    )
    assert [(each.source, each.id) for each in heard] == [("ci", "evt-1"), ("cd", "evt-1")]


@pytest.mark.parametrize("goal", [PushTarget.EVENTS, PushTarget.WEBHOOKS])
async def test_a_push_is_posted_once_to_who_subscribed(goal: PushTarget) -> None:
    hooked = Hooked()
    one = await hooked.subscribe(name="push.received")
    hooked.plane.post = hooked.intake.post
    post = build_effects(hooked.plane, House().topics, Turns)[goal]
    for _ in range(3):
        await post(to(goal))
    assert (await hooked.kept(one)).waiting == 1
    (waiting,) = await hooked.hooks.store.posts(one.id)
    assert b"the build broke" in waiting.body
    assert waiting.event.startswith("evt_")


async def test_what_two_nodes_say_of_one_push_is_heard_once_at_every_node() -> None:
    """As when one dies after it has said it, and its heir says it again."""
    async with nodes("a", "b", "c") as (a, b, c):
        here, there = await b.joins("agent:bea"), await c.joins("agent:cy")
        for node in (a, c, a):
            say = effect(PushTarget.TOPIC, node.topics)
            await say(to(PushTarget.TOPIC, place="ops"))
            await settled()
            # Where nobody is, what was said is soon forgotten.
            a.topics.look()
        for outlet in (here, there):
            assert [each["payload"]["text"] for each in outlet.heard("chat")] == ["the build broke"]
            assert outlet.heard("system/missed") == []
