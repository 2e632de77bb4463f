"""What follows from pushes: events, envelopes, posts and turns, each once however often tried."""

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from comity.kernel.live.parts import Errand, Origin, Taken
from comity.kernel.live.push_effects import effects
from comity.kernel.rooms import Terms
from comity.kernel.seats import Said
from comity.rules.topics import Access as Entrance
from comity.wire.contents import Block, said
from comity.wire.envelope import Limits
from comity.wire.errors import UPSTREAM_DOWN, MalformedMessage, Unavailable
from comity.wire.events import Event, Severity, Wanted
from comity.wire.pushes import Goal, KeptPush, Push, Route
from tests.kernel.carriers import settled
from tests.kernel.hooked import ANA as WATCHER
from tests.kernel.hooked import NOW, Hooked
from tests.kernel.test_topic_span import nodes
from tests.kernel.topic_house import ANA, BEA, USUAL, House

PUSH = Push("ci", "evt-1", NOW, said("the build broke"), "ci.builds", {"repo": "a"})
HOOK = replace(PUSH, server="hook:github", feature="")


def to(goal: Goal, push: Push = PUSH, **more: Any) -> KeptPush:
    return KeptPush(push, Route(goal, **more), NOW, NOW)


@dataclass
class Turns:
    """Who takes turns; each cause has one."""

    begun: dict[str, str] = field(default_factory=dict[str, str])
    errands: list[Errand] = field(default_factory=list[Errand])

    async def begin(self, errand: Errand) -> Taken:
        self.errands.append(errand)
        is_new = errand.cause.key not in self.begun
        inference = self.begun.setdefault(errand.cause.key, f"inf_{len(self.begun) + 1}")
        return Taken(inference, errand.conversation, is_new)

    async def finished(self, inference: str) -> str:
        return inference


async def test_a_turn_is_begun_once_for_a_push() -> None:
    turns = Turns()
    begin = effects(Hooked().plane, House().topics, lambda: turns, "agent:host")[Goal.TURN]
    kept = to(Goal.TURN, conversation="ops", party="agent:ops", say_in=("topic:ops",))
    assert [await begin(kept) for _ in range(3)] == ["inf_1"] * 3
    errand = turns.errands[0]
    assert (errand.conversation, errand.author, errand.say_in) == (
        "ops",
        "server:ci",
        ("topic:ops",),
    )
    cause = errand.cause
    assert (cause.origin, cause.key, cause.party) == (Origin.PUSH, "push:ci/evt-1", "agent:ops")
    assert (cause.server, cause.feature) == ("ci", "ci.builds")


async def test_a_turn_of_a_webhook_is_no_servers_and_in_the_usual_name() -> None:
    turns = Turns()
    begin = effects(Hooked().plane, House().topics, lambda: turns, "agent:host")[Goal.TURN]
    await begin(to(Goal.TURN, HOOK, conversation="ops"))
    (errand,) = turns.errands
    assert (errand.cause.server, errand.cause.party) == ("", "agent:host")
    assert errand.author == "system:hook:github"


async def test_where_nobody_takes_turns_it_is_tried_again() -> None:
    begin = effects(Hooked().plane, House().topics, lambda: None)[Goal.TURN]
    with pytest.raises(Unavailable):
        await begin(to(Goal.TURN, conversation="ops"))


async def test_a_push_without_content_begins_no_turn() -> None:
    begin = effects(Hooked().plane, House().topics, Turns)[Goal.TURN]
    with pytest.raises(MalformedMessage):
        await begin(to(Goal.TURN, replace(PUSH, content=()), conversation="ops"))


# Topics


class Elsewhere:
    """The same topics at other nodes, which can be away."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.is_away = False

    def say(self, topic: str, said: Said) -> None:
        if self.is_away:
            raise Unavailable("away", UPSTREAM_DOWN)
        self.said.append(said.envelope.id)

    def joined(self, topic: str, seat: object) -> None: ...
    def left(self, topic: str, party: str) -> None: ...


async def test_a_push_is_said_in_its_topic_once_and_names_its_server() -> None:
    house = House()
    ana, bea = await house.joins(ANA), await house.joins(BEA)
    say = effects(Hooked().plane, house.topics, Turns)[Goal.TOPIC]
    for _ in range(3):
        assert await say(to(Goal.TOPIC, place="ops")) == ""
    for ear in (ana, bea):
        (heard,) = ear.heard("chat")
        assert heard["from"] == "server:ci"
        assert heard["payload"]["text"] == "the build broke"
        assert heard["payload"]["source"] == {
            "server": "ci",
            "event": "evt-1",
            "feature_set": "ci.builds",
        }


async def test_one_push_has_the_same_envelope_at_every_node_and_two_have_two() -> None:
    ids: list[str] = []
    for _ in range(2):
        house = House()
        ear = await house.joins(ANA)
        say = effects(Hooked().plane, house.topics, Turns)[Goal.TOPIC]
        await say(to(Goal.TOPIC, place="ops"))
        await say(to(Goal.TOPIC, replace(PUSH, id="evt-2"), place="ops"))
        ids += [each["id"] for each in ear.heard("chat")]
    assert ids[:2] == ids[2:]
    assert len(set(ids)) == 2


async def test_where_other_nodes_cannot_be_reached_nobody_hears_it_until_all_do() -> None:
    house, elsewhere = House(), Elsewhere()
    house.topics.span = elsewhere
    ear = await house.joins(ANA)
    say = effects(Hooked().plane, house.topics, Turns)[Goal.TOPIC]
    elsewhere.is_away = True
    with pytest.raises(Unavailable):
        await say(to(Goal.TOPIC, place="ops"))
    assert ear.heard("chat") == []
    elsewhere.is_away = False
    await say(to(Goal.TOPIC, place="ops"))
    assert elsewhere.said == [each["id"] for each in ear.heard("chat")]


async def test_a_topic_in_which_nobody_is_is_forgotten_again() -> None:
    house = House()
    await effects(Hooked().plane, house.topics, Turns)[Goal.TOPIC](to(Goal.TOPIC, place="ops"))
    house.topics.look()
    assert not house.topics.rooms


async def test_what_is_too_long_for_a_topic_fails_and_is_not_tried_again() -> None:
    terms = Terms(Entrance.PUBLIC, USUAL, limits=Limits(2_000, 64))
    house = House(terms)
    say = effects(Hooked().plane, house.topics, Turns)[Goal.TOPIC]
    with pytest.raises(MalformedMessage):
        await say(to(Goal.TOPIC, replace(PUSH, content=said("x" * 5_000)), place="ops"))


# Events


async def test_a_push_is_told_to_who_follows_it_once_and_as_its_servers_word() -> None:
    hooked = Hooked()
    heard: list[Event] = []
    hooked.plane.post = hooked.intake.post
    hooked.plane.follow(Wanted(("push.received",)), WATCHER, heard.append)
    tell = effects(hooked.plane, House().topics, Turns)[Goal.EVENTS]
    for _ in range(3):
        await tell(to(Goal.EVENTS))
    (event,) = heard
    assert (event.id, event.channel, event.source) == ("evt-1", "push.received", "ci")
    assert event.data["content"] == [{"type": "text", "text": "the build broke"}]
    assert event.data["event_id"] == "evt-1"


async def test_what_a_server_told_as_an_event_before_is_the_same_fact() -> None:
    """D-99"""
    hooked = Hooked()
    heard: list[Event] = []
    hooked.plane.post = hooked.intake.post
    hooked.plane.follow(Wanted(("*",)), WATCHER, heard.append)
    first = Event("evt-1", "ci.broke", NOW, Severity.INFO, {}, "ci", source="ci")
    hooked.plane.publish(first)
    await effects(hooked.plane, House().topics, Turns)[Goal.EVENTS](to(Goal.EVENTS))
    other = replace(PUSH, server="cd")
    await effects(hooked.plane, House().topics, Turns)[Goal.EVENTS](to(Goal.EVENTS, other))
    assert [(each.source, each.id) for each in heard] == [("ci", "evt-1"), ("cd", "evt-1")]


@pytest.mark.parametrize("goal", [Goal.EVENTS, Goal.WEBHOOKS])
async def test_a_push_is_posted_once_to_who_subscribed(goal: Goal) -> None:
    hooked = Hooked()
    one = await hooked.subscribe(name="push.received")
    hooked.plane.post = hooked.intake.post
    post = effects(hooked.plane, House().topics, Turns)[goal]
    for _ in range(3):
        await post(to(goal))
    assert (await hooked.kept(one)).waiting == 1
    (waiting,) = await hooked.hooks.records.posts(one.id)
    assert b"the build broke" in waiting.body
    assert waiting.event.startswith("evt_")


async def test_before_it_is_known_who_subscribed_it_is_tried_again() -> None:
    hooked = Hooked()
    with pytest.raises(Unavailable):
        await effects(hooked.plane, House().topics, Turns)[Goal.WEBHOOKS](to(Goal.WEBHOOKS))


async def test_what_is_no_text_is_named_in_a_topic() -> None:
    house = House()
    ear = await house.joins(ANA)
    push = replace(PUSH, content=(Block("image", uri="https://x/y.png"),))
    await effects(Hooked().plane, house.topics, Turns)[Goal.TOPIC](
        to(Goal.TOPIC, push, place="ops")
    )
    assert "y.png" in ear.heard("chat")[0]["payload"]["text"]


async def test_what_two_nodes_say_of_one_push_is_heard_once_at_every_node() -> None:
    """As when one dies after it has said it, and its heir says it again."""
    async with nodes("a", "b", "c") as (a, b, c):
        here, there = await b.joins("agent:bea"), await c.joins("agent:cy")
        for node in (a, c, a):
            say = effects(Hooked().plane, node.topics, Turns)[Goal.TOPIC]
            await say(to(Goal.TOPIC, place="ops"))
            await settled()
            # Where nobody is, what was said is soon forgotten.
            a.topics.look()
        for outlet in (here, there):
            assert [each["payload"]["text"] for each in outlet.of("chat")] == ["the build broke"]
            assert outlet.of("system/missed") == []
