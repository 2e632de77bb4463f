"""The host of live servers: what it tells them, lets them do, answers, and how much at once."""

import asyncio
import logging
from typing import Any

import pytest
from msgspec import Raw

from comity.kernel.live.enabling import Enabling
from comity.kernel.live.hosting import Hosted, Hosting, Told
from comity.kernel.live.load import MOST_ASKED
from comity.rules.live_policy import LivePolicy
from comity.wire import jsonrpc, reverse
from comity.wire.errors import EXHAUSTED, INVALID_PARAMS, MalformedMessage, Unavailable
from comity.wire.features import Use
from comity.wire.jsonrpc import Frame
from tests.kernel.live.live_link import (
    DECLARED,
    Asker,
    LinkRoom,
    breath,
    calling,
    params_of,
)

POLICY = LivePolicy(enabled=("memory.*",))
PUSH = "push/event"


class House:
    """A host whose policy a test changes as it likes."""

    def __init__(self, policy: LivePolicy = POLICY) -> None:
        self.policy = policy
        self.hosting = Hosting(lambda _: self.policy)
        self.told: list[Told] = []
        self.hosting.add(PUSH, self.push, Use.PUSH)

    async def push(self, told: Told) -> dict[str, object]:
        self.told.append(told)
        return {"accepted": True, "inferenceId": "inf-1"}

    def welcome(self, *, modern: bool = False, server: str = "srv") -> LinkRoom:
        link = LinkRoom(server, modern=modern)
        self.hosting.welcome(link, DECLARED)
        return link

    def ask(self, link: LinkRoom, method: str, number: int = 1, **params: Any) -> Asker:
        asker = Asker(link, method, number, **params)
        assert self.hosting.asked(link, asker.question, asker.frame, None)
        return asker

    def tell(self, link: LinkRoom, method: str, **params: Any) -> bool:
        return self.hosting.told(link, jsonrpc.notification(method, params))


async def test_a_server_is_told_at_once_what_it_may_do() -> None:
    house = House()
    link = house.welcome()
    assert link.updates() == [{"enabled": ["memory.push", "memory.read"], "disabled": ["files"]}]
    house.policy = LivePolicy(enabled=("files",))
    house.hosting.refresh("srv")
    assert link.updates()[-1] == {"enabled": ["files"], "disabled": ["memory.push", "memory.read"]}
    house.hosting.refresh("nobody")


async def test_a_modern_server_is_asked_to_hear_it_before_it_is_listened_to() -> None:
    link = House().welcome(modern=True)
    await breath()
    assert [method for method, _ in link.asked[:2]] == ["featureSets/update", reverse.LISTEN]


async def test_a_message_reaches_who_answers_it_with_the_set_by_which_it_may() -> None:
    house = House()
    link = house.welcome()
    asker = house.ask(link, PUSH, featureSet="memory.push")
    assert asker.code is None
    (told,) = house.told
    assert told.feature is not None
    assert (told.by.server, told.feature.name, told.id) == ("srv", "memory.push", 1)
    assert told.members["featureSet"] == Raw(b'"memory.push"')


@pytest.mark.parametrize(
    ("feature", "code"),
    [("memory.read", -32001), ("files", -32001), ("nowhere", -32003), (None, -32602), (7, -32602)],
)
async def test_a_message_of_another_set_is_refused_before_anybody_sees_it(
    feature: object, code: int
) -> None:
    house = House()
    params: dict[str, Any] = {} if feature is None else {"featureSet": feature}
    asker = house.ask(house.welcome(), PUSH, **params)
    assert asker.code == code
    assert house.told == []
    if code == -32001:
        assert asker.data["featureSet"] == feature
        assert asker.data["canEnable"] is True


async def test_before_it_was_greeted_a_server_may_nothing() -> None:
    house = House()
    asker = house.ask(LinkRoom(), PUSH, featureSet="memory.push")
    assert asker.code == -32001


async def test_what_nobody_answers_is_answered_and_what_is_not_mcpl_is_left_alone() -> None:
    house = House()
    link = house.welcome()
    assert house.ask(link, "channels/incoming").code == -32601
    other = Asker(link, "sampling/createMessage", 2)
    assert not house.hosting.asked(link, other.question, other.frame, None)
    assert not house.tell(link, "notifications/message")
    assert house.tell(link, "channels/changed")


async def test_what_fails_is_told_the_server_and_a_bug_is_not_described(
    caplog: pytest.LogCaptureFixture,
) -> None:
    house = House()
    link = house.welcome()

    async def fail(told: Told) -> dict[str, object]:
        raise {
            1: MalformedMessage("not so", INVALID_PARAMS),
            2: Unavailable("too much", EXHAUSTED),
            3: RuntimeError("the secret is 42"),
        }[int(str(told.id))]

    house.hosting.add("model/info", fail)
    codes = [house.ask(link, "model/info", number).code for number in (1, 2, 3)]
    assert codes == [-32602, -32603, -32603]
    with caplog.at_level(logging.ERROR):
        asker = house.ask(link, "model/info", 3)
    assert "42" not in str(jsonrpc.error_of(asker.answers[-1]))


async def test_so_many_requests_are_under_way_and_one_more_is_refused_at_once() -> None:
    house = House()
    link, other = house.welcome(), house.welcome(server="other")
    gate = asyncio.Event()

    async def wait(told: Told) -> dict[str, object]:
        await gate.wait()
        return {}

    house.hosting.add("model/info", wait)
    asked = [house.ask(link, "model/info", number) for number in range(MOST_ASKED)]
    assert all(each.answers == [] for each in asked)
    assert house.ask(link, "model/info", 1_000).code == -32603
    calm = house.ask(other, "model/info", 1)
    assert calm.answers == [], "another server has a bound of its own"
    gate.set()
    await breath()
    assert all(each.code is None for each in (*asked, calm))
    assert house.ask(link, "model/info", 2_000).code is None


async def test_a_question_that_is_taken_back_is_not_worked_on_any_longer() -> None:
    house = House()
    link = house.welcome()
    ended: list[int] = []

    async def wait(told: Told) -> dict[str, object]:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(1)
        return {}

    house.hosting.add("model/info", wait)
    asker = house.ask(link, "model/info")
    asker.question.withdraw(None)
    await breath()
    assert ended == [1]
    assert asker.answers == []


async def test_what_a_server_can_do_anew_counts_at_once_and_its_bounds_hold() -> None:
    house = House()
    link = house.welcome()
    more = {"description": "More", "uses": ["pushEvents"]}
    assert house.tell(link, "featureSets/changed", added={"memory.more": more}, removed=["files"])
    assert link.updates()[-1]["enabled"] == ["memory.more", "memory.push", "memory.read"]
    assert link.updates()[-1]["disabled"] == []
    before = len(link.updates())
    house.tell(link, "featureSets/changed", added={"x": 7})
    assert len(link.updates()) == before
    for _ in range(200):
        house.tell(link, "featureSets/changed")
    assert len(link.updates()) < before + 100


async def test_one_watcher_that_fails_keeps_nobody_from_hearing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    house = House()
    heard: list[str] = []

    def fails(hosted: Hosted) -> None:
        raise RuntimeError

    def hears(hosted: Hosted) -> None:
        heard.append(hosted.server)

    house.hosting.parts.watchers += [fails, hears]
    with caplog.at_level(logging.CRITICAL):
        house.welcome()
    assert heard == ["srv"]


async def test_those_that_may_do_something_are_named_in_their_order() -> None:
    orders = {"a": 3, "b": 1, "c": 2}
    hosting = Hosting(lambda server: LivePolicy(enabled=("*",), order=orders[server]))
    links = {name: LinkRoom(name) for name in orders}
    for link in links.values():
        hosting.welcome(link, DECLARED)
    assert [each.server for each in hosting.having(Use.PUSH)] == ["b", "c", "a"]
    links["c"].is_open = False
    assert [each.server for each in hosting.all()] == ["b", "a"]
    assert hosting.having(Use.PUBLISH) == []
    assert hosting.get("c") is None


async def test_another_link_to_a_server_only_carries_calls_and_is_told_the_same() -> None:
    house = House()
    own = house.welcome()
    other = LinkRoom()
    house.hosting.greeted(other, None)
    assert other.updates() == own.updates()
    found = house.hosting.get("srv")
    assert found is not None
    assert found.link is own
    plain = LinkRoom("plain")
    house.hosting.greeted(plain, Raw(b'{"tools": {}}'))
    assert house.hosting.get("plain") is None


async def test_a_server_that_another_node_runs_has_its_host_there() -> None:
    house = House()
    house.hosting.is_elsewhere = lambda server: server == "far"
    said = jsonrpc.to_raw({"experimental": {"mcpl": {"version": "0.4"}}})
    for name in ("far", "near"):
        house.hosting.greeted(LinkRoom(name), said)
    assert [each.server for each in house.hosting.all()] == ["near"]


async def test_a_server_that_comes_again_begins_anew_and_one_that_is_gone_is_forgotten() -> None:
    house = House()
    first, second = house.welcome(modern=True), house.welcome(modern=True)
    found = house.hosting.get("srv")
    assert found is not None
    assert found.link is second
    frame = jsonrpc.notification(reverse.ASKED, {"id": 1, "method": PUSH, "params": {}})
    assert house.hosting.told(first, frame)
    await breath()
    assert [m for m, _ in first.asked if m == reverse.RESPOND] == []
    house.hosting.dismiss("srv")
    house.hosting.dismiss("srv")
    assert house.hosting.all() == []
    house.hosting.stop()


async def test_a_modern_server_asks_and_tells_on_the_way_back() -> None:
    house = House()
    link = house.welcome(modern=True)

    def back(kind: str, **carried: Any) -> None:
        assert house.hosting.told(link, jsonrpc.notification(kind, carried))

    back(reverse.ASKED, id="q-1", method=PUSH, params={"featureSet": "memory.push"})
    back(reverse.ASKED, id="q-2", method=PUSH, params={"featureSet": "files"})
    back(reverse.ASKED, method=PUSH)
    back(reverse.TOLD, method="featureSets/changed", params={"removed": ["files"]})
    await breath()
    answers = [params for method, params in link.asked if method == reverse.RESPOND]
    assert [each["id"] for each in answers] == ["q-1", "q-2"]
    assert answers[0]["result"]["accepted"] is True
    assert answers[1]["error"]["code"] == -32001
    assert link.updates()[-1]["disabled"] == []
    house.hosting.stop()


class Bears:
    """Adds a member to calls, and takes one from answers."""

    def __init__(self) -> None:
        self.does = True

    def carries(self, by: Hosted, call: Any, frame: Frame) -> bool:
        return self.does

    async def bring(self, by: Hosted, call: Any, frame: Frame) -> Frame:
        return jsonrpc.with_params(frame, jsonrpc.to_raw({**params_of(frame), "borne": True}))

    async def take(self, by: Hosted, call: Any, frame: Frame) -> Frame:
        return frame


async def test_a_call_is_sent_with_all_that_belongs_to_it_or_left_alone() -> None:
    house = House()
    bears = Bears()
    house.hosting.parts.bearers.append(bears)
    link = house.welcome()
    call, frame = calling()
    assert house.hosting.carries(link, call, frame, ())
    assert params_of(link.sent[0]) == {"name": "edit", "borne": True}
    bears.does = False
    assert not house.hosting.carries(link, call, frame, ())
    assert not house.hosting.carries(LinkRoom("plain"), call, frame, ())


async def test_a_modern_call_says_that_its_host_goes_by_scopes_unless_its_client_is_one() -> None:
    house = House()
    link = house.welcome(modern=True)
    call, frame = calling()
    assert house.hosting.carries(link, call, frame, ())
    said = params_of(link.sent[0])["_meta"]["io.modelcontextprotocol/clientCapabilities"]
    assert said == {"extensions": {"dev.comity/mcpl": {"version": "0.4", "featureSets": True}}}
    mine = {"extensions": {"dev.comity/mcpl": {"version": "0.4"}}}
    call, frame = calling(_meta={"io.modelcontextprotocol/clientCapabilities": mine})
    assert not house.hosting.carries(link, call, frame, ())
    call.is_for_all_servers = True
    assert house.hosting.carries(link, call, frame, ())
    house.hosting.stop()


async def test_only_answers_to_calls_of_tools_are_taken_from() -> None:
    house = House()
    link = house.welcome()
    call, _ = calling()
    answer = jsonrpc.result("c-1", {"content": []})
    assert not house.hosting.answered(link, call, answer, 200)
    house.hosting.parts.bearers.append(Bears())
    assert house.hosting.answered(link, call, answer, 200)
    assert call.outbox.final
    call.method = "prompts/get"
    assert not house.hosting.answered(link, call, answer, 200)


async def test_what_grants_say_counts_once_they_are_others() -> None:
    identity = [object()]
    policies = [POLICY]
    enabling = Enabling(lambda _: policies[0], None, lambda: identity[0])
    hosting = Hosting(enabling=enabling)
    link = LinkRoom()
    hosting.welcome(link, DECLARED)
    policies[0] = LivePolicy()
    hosting.look()
    assert len(link.updates()) == 1
    identity[0] = object()
    hosting.look()
    assert link.updates()[-1]["enabled"] == []
    hosting.look()
    assert len(link.updates()) == 2
