"""The host of live servers: what it tells them, lets them do, and sends along with calls."""

import asyncio
import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from msgspec import Raw

from comity.errors import (
    ACCESS_DENIED,
    EXHAUSTED,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    UPSTREAM_SLOW,
    MalformedMessage,
    Unavailable,
)
from comity.live import host as under_test
from comity.live import reverse_channel
from comity.live.features import DEFAULT_POLICY, UNDECIDED, LivePolicy
from comity.live.host import (
    MAX_ACTIVE_REQUESTS,
    FeatureSetDecisions,
    LiveHost,
    LiveMessage,
    LiveServer,
    ServerConcurrency,
    announce_extension,
    answer_call,
    is_client_mcpl_host,
    send_call,
)
from comity.live.reverse_channel import ReverseChannel
from comity.mcp import jsonrpc, mcpl
from comity.mcp.jsonrpc import Frame
from comity.mcp.mcpl import FeatureUse
from comity.sessions.calls import Call
from comity.sessions.client_streams import ClientStream
from comity.sessions.upstream import LiveConnection
from comity.toolkit.resilience import RetrySchedule
from tests.live.live_link import DECLARED, Asker, LinkRoom, breath, calling, params_of

POLICY = LivePolicy(enabled=("memory.*",))
PUSH = "push/event"


class House:
    """A host whose policy a test changes as it likes."""

    def __init__(self, policy: LivePolicy = POLICY) -> None:
        self.policy = policy
        self.hosting = LiveHost(lambda _: self.policy)
        self.told: list[LiveMessage] = []
        self.hosting.add_request_handler(PUSH, self.push, FeatureUse.PUSH)

    async def push(self, told: LiveMessage) -> dict[str, object]:
        self.told.append(told)
        return {"accepted": True, "inferenceId": "inf-1"}

    def welcome(self, *, modern: bool = False, server: str = "srv") -> LinkRoom:
        link = LinkRoom(server, modern=modern)
        self.hosting.register(link, DECLARED)
        return link

    def ask(self, link: LinkRoom, method: str, number: int = 1, **params: Any) -> Asker:
        asker = Asker(link, method, number, **params)
        assert self.hosting.handle_request(link, asker.question, asker.frame, None)
        return asker

    def tell(self, link: LinkRoom, method: str, **params: Any) -> bool:
        return self.hosting.handle_notification(link, jsonrpc.make_notification(method, params))


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
    assert [method for method, _ in link.asked[:2]] == ["featureSets/update", mcpl.LISTEN]


async def test_a_message_reaches_who_answers_it_with_the_set_by_which_it_may() -> None:
    house = House()
    link = house.welcome()
    asker = house.ask(link, PUSH, featureSet="memory.push")
    assert asker.code is None
    (told,) = house.told
    assert told.feature is not None
    assert (told.live_server.server, told.feature.name, told.id) == ("srv", "memory.push", 1)
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
    assert not house.hosting.handle_request(link, other.question, other.frame, None)
    assert not house.tell(link, "notifications/message")
    assert house.tell(link, "channels/changed")


async def test_what_fails_is_told_the_server_and_a_bug_is_not_described(
    caplog: pytest.LogCaptureFixture,
) -> None:
    house = House()
    link = house.welcome()

    async def fail(told: LiveMessage) -> dict[str, object]:
        raise {
            1: MalformedMessage("not so", INVALID_PARAMS),
            2: Unavailable("too much", EXHAUSTED),
            3: RuntimeError("the secret is 42"),
        }[int(str(told.id))]

    house.hosting.add_request_handler("model/info", fail)
    codes = [house.ask(link, "model/info", number).code for number in (1, 2, 3)]
    assert codes == [-32602, -32603, -32603]
    with caplog.at_level(logging.ERROR):
        asker = house.ask(link, "model/info", 3)
    assert "42" not in str(jsonrpc.error_of(asker.answers[-1]))


async def test_so_many_requests_are_under_way_and_one_more_is_refused_at_once() -> None:
    house = House()
    link, other = house.welcome(), house.welcome(server="other")
    gate = asyncio.Event()

    async def wait(told: LiveMessage) -> dict[str, object]:
        await gate.wait()
        return {}

    house.hosting.add_request_handler("model/info", wait)
    asked = [house.ask(link, "model/info", number) for number in range(MAX_ACTIVE_REQUESTS)]
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

    async def wait(told: LiveMessage) -> dict[str, object]:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(1)
        return {}

    house.hosting.add_request_handler("model/info", wait)
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

    def fails(hosted: LiveServer) -> None:
        raise RuntimeError

    def hears(hosted: LiveServer) -> None:
        heard.append(hosted.server)

    house.hosting.handlers.watchers += [fails, hears]
    with caplog.at_level(logging.CRITICAL):
        house.welcome()
    assert heard == ["srv"]


async def test_those_that_may_do_something_are_named_in_their_order() -> None:
    orders = {"a": 3, "b": 1, "c": 2}
    hosting = LiveHost(lambda server: LivePolicy(enabled=("*",), order=orders[server]))
    links = {name: LinkRoom(name) for name in orders}
    for link in links.values():
        hosting.register(link, DECLARED)
    assert [each.server for each in hosting.servers_using(FeatureUse.PUSH)] == ["b", "c", "a"]
    links["c"].is_open = False
    assert [each.server for each in hosting.all()] == ["b", "a"]
    assert hosting.servers_using(FeatureUse.PUBLISH) == []
    assert hosting.get("c") is None


async def test_another_link_to_a_server_only_carries_calls_and_is_told_the_same() -> None:
    house = House()
    own = house.welcome()
    other = LinkRoom()
    house.hosting.on_connected(other, None)
    assert other.updates() == own.updates()
    found = house.hosting.get("srv")
    assert found is not None
    assert found.connection is own
    plain = LinkRoom("plain")
    house.hosting.on_connected(plain, Raw(b'{"tools": {}}'))
    assert house.hosting.get("plain") is None


async def test_a_server_that_another_node_runs_has_its_host_there() -> None:
    house = House()
    house.hosting.is_on_other_node = lambda server: server == "far"
    said = jsonrpc.to_raw({"experimental": {"mcpl": {"version": "0.4"}}})
    for name in ("far", "near"):
        house.hosting.on_connected(LinkRoom(name), said)
    assert [each.server for each in house.hosting.all()] == ["near"]


async def test_a_server_that_comes_again_begins_anew_and_one_that_is_gone_is_forgotten() -> None:
    house = House()
    first, second = house.welcome(modern=True), house.welcome(modern=True)
    found = house.hosting.get("srv")
    assert found is not None
    assert found.connection is second
    frame = jsonrpc.make_notification(mcpl.REVERSE_REQUEST, {"id": 1, "method": PUSH, "params": {}})
    assert house.hosting.handle_notification(first, frame)
    await breath()
    assert [m for m, _ in first.asked if m == mcpl.RESPOND] == []
    house.hosting.remove("srv")
    house.hosting.remove("srv")
    assert house.hosting.all() == []
    house.hosting.stop()


async def test_a_modern_server_asks_and_tells_on_the_way_back() -> None:
    house = House()
    link = house.welcome(modern=True)

    def back(kind: str, **carried: Any) -> None:
        assert house.hosting.handle_notification(link, jsonrpc.make_notification(kind, carried))

    back(mcpl.REVERSE_REQUEST, id="q-1", method=PUSH, params={"featureSet": "memory.push"})
    back(mcpl.REVERSE_REQUEST, id="q-2", method=PUSH, params={"featureSet": "files"})
    back(mcpl.REVERSE_REQUEST, method=PUSH)
    back(mcpl.REVERSE_NOTIFICATION, method="featureSets/changed", params={"removed": ["files"]})
    await breath()
    answers = [params for method, params in link.asked if method == mcpl.RESPOND]
    assert [each["id"] for each in answers] == ["q-1", "q-2"]
    assert answers[0]["result"]["accepted"] is True
    assert answers[1]["error"]["code"] == -32001
    assert link.updates()[-1]["disabled"] == []
    house.hosting.stop()


class Bearer:
    """Does what a test wants."""

    def __init__(self, fails: Exception | None = None) -> None:
        self.fails = fails
        self.does = True

    def has_data_for(self, live_server: LiveServer, call: Call, frame: Frame) -> bool:
        return self.does

    async def add_data(self, live_server: LiveServer, call: Call, frame: Frame) -> Frame:
        if self.fails is not None:
            raise self.fails
        return jsonrpc.with_params(frame, jsonrpc.to_raw({**params_of(frame), "state": 1}))

    async def take_data(self, live_server: LiveServer, call: Call, frame: Frame) -> Frame:
        if self.fails is not None:
            raise self.fails
        return jsonrpc.make_result("c-1", {"content": []})


async def test_a_call_is_sent_with_all_that_belongs_to_it_or_left_alone() -> None:
    house = House()
    bears = Bearer()
    house.hosting.handlers.interceptors.append(bears)
    link = house.welcome()
    call, frame = calling()
    assert house.hosting.send_with_state(link, call, frame, ())
    assert params_of(link.sent[0]) == {"name": "edit", "state": 1}
    bears.does = False
    assert not house.hosting.send_with_state(link, call, frame, ())
    assert not house.hosting.send_with_state(LinkRoom("plain"), call, frame, ())


async def test_a_modern_call_says_that_its_host_goes_by_scopes_unless_its_client_is_one() -> None:
    house = House()
    link = house.welcome(modern=True)
    call, frame = calling()
    assert house.hosting.send_with_state(link, call, frame, ())
    said = params_of(link.sent[0])["_meta"]["io.modelcontextprotocol/clientCapabilities"]
    assert said == {"extensions": {"dev.comity/mcpl": {"version": "0.4", "featureSets": True}}}
    mine = {"extensions": {"dev.comity/mcpl": {"version": "0.4"}}}
    call, frame = calling(_meta={"io.modelcontextprotocol/clientCapabilities": mine})
    assert not house.hosting.send_with_state(link, call, frame, ())
    call.is_for_all_servers = True
    assert house.hosting.send_with_state(link, call, frame, ())
    house.hosting.stop()


async def test_only_answers_to_calls_of_tools_are_taken_from() -> None:
    house = House()
    link = house.welcome()
    call, _ = calling()
    answer = jsonrpc.make_result("c-1", {"content": []})
    assert not house.hosting.handle_answer(link, call, answer, 200)
    house.hosting.handlers.interceptors.append(Bearer())
    assert house.hosting.handle_answer(link, call, answer, 200)
    assert call.client_stream.is_final
    call.method = "prompts/get"
    assert not house.hosting.handle_answer(link, call, answer, 200)


async def test_what_grants_say_counts_once_they_are_others() -> None:
    identity = [object()]
    policies = [POLICY]
    enabling = FeatureSetDecisions(lambda _: policies[0], None, lambda: identity[0])
    hosting = LiveHost(decisions=enabling)
    link = LinkRoom()
    hosting.register(link, DECLARED)
    policies[0] = LivePolicy()
    hosting.refresh_outdated()
    assert len(link.updates()) == 1
    identity[0] = object()
    hosting.refresh_outdated()
    assert link.updates()[-1]["enabled"] == []
    hosting.refresh_outdated()
    assert len(link.updates()) == 2


SOON = timedelta(seconds=30)


def hosting(*, modern: bool = False, enabled: tuple[str, ...] = ("memory.push",)) -> LiveServer:
    return LiveServer("srv", LinkRoom(modern=modern), DECLARED, DEFAULT_POLICY, frozenset(enabled))


def connection_of(hosted: LiveServer) -> LinkRoom:
    assert isinstance(hosted.connection, LinkRoom)
    return hosted.connection


def test_what_it_may_do_is_what_is_enabled_for_that_use() -> None:
    hosted = hosting()
    assert hosted.require("memory.push", FeatureUse.PUSH).name == "memory.push"
    assert [each.name for each in hosted.feature_sets_for(FeatureUse.PUSH)] == ["memory.push"]
    assert hosted.feature_sets_for(FeatureUse.BEFORE) == []
    assert hosted.feature_status("memory.read") is UNDECIDED
    with pytest.raises(MalformedMessage):
        hosted.require("memory.read", FeatureUse.BEFORE)


async def test_it_is_told_by_a_notice_and_in_the_modern_era_by_a_request() -> None:
    old, new = hosting(), hosting(modern=True)
    for hosted in (old, new):
        await hosted.notify("inference/chunk", {"index": 1})
    assert connection_of(old).told == [("inference/chunk", {"index": 1})]
    ((method, params),) = connection_of(new).asked
    assert method == "inference/chunk"
    assert params["index"] == 1
    assert "dev.comity/mcpl" in str(params["_meta"])


async def test_a_modern_server_is_told_one_thing_after_the_other_and_not_too_much(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(under_test, "MOST_TOLD", 3)
    hosted, gate = hosting(modern=True), asyncio.Event()

    async def slow(method: str, params: object) -> Frame:
        await gate.wait()
        return jsonrpc.make_result(1, {})

    connection_of(hosted).reply = slow
    telling = [asyncio.ensure_future(hosted.notify("x", {"n": n})) for n in range(5)]
    await breath()
    assert [params["n"] for _, params in connection_of(hosted).asked] == [0]
    gate.set()
    await asyncio.gather(*telling)
    assert [params["n"] for _, params in connection_of(hosted).asked] == [0, 1, 2]


async def test_a_server_that_does_not_hear_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(under_test, "TELL_SECONDS", 0.01)
    hosted = hosting(modern=True)

    async def silent(method: str, params: object) -> Frame:
        await asyncio.Event().wait()
        raise AssertionError

    connection_of(hosted).reply = silent
    await hosted.notify("x", {})

    async def gone(method: str, params: object) -> Frame:
        raise Unavailable("gone")

    connection_of(hosted).reply = gone
    await hosted.notify("x", {})


async def test_what_it_answers_is_given_and_its_errors_keep_their_code() -> None:
    hosted = hosting()

    async def answers(method: str, params: object) -> Frame:
        if method == "state/rollback":
            return jsonrpc.decode_frame(
                b'{"jsonrpc":"2.0","id":1,"error":{"code":-32005,"message":"x"}}'
            )
        return jsonrpc.make_result(1, {"ok": True})

    connection_of(hosted).reply = answers
    assert bytes(await hosted.request("channels/open", {}, SOON)) == b'{"ok":true}'
    with pytest.raises(MalformedMessage) as refused:
        await hosted.request("state/rollback", {}, SOON)
    assert refused.value.fault.code == -32005


async def test_it_is_asked_within_bounds() -> None:
    hosted = hosting()

    async def silent(method: str, params: object) -> Frame:
        await asyncio.Event().wait()
        raise AssertionError

    connection_of(hosted).reply = silent
    with pytest.raises(Unavailable) as refused:
        await hosted.request("context/beforeInference", {}, timedelta(milliseconds=10))
    assert refused.value.fault is UPSTREAM_SLOW


async def test_what_is_begun_runs_up_to_its_first_wait_and_what_ends_makes_room() -> None:
    load, done = ServerConcurrency(max_requests=1), list[int]()

    async def at_once() -> None:
        done.append(1)

    assert load.start_answer("a", at_once) is not None
    assert (done, load.active_requests("a")) == ([1], 0)
    gate = asyncio.Event()

    async def waits() -> None:
        await gate.wait()

    assert load.start_answer("a", waits) is not None
    assert load.start_answer("a", waits) is None
    assert load.start_answer("b", waits) is not None
    gate.set()
    await breath()
    assert (load.active_requests("a"), load.active_requests("b")) == (0, 0)


async def test_notices_are_heard_in_their_order_and_those_too_many_are_not() -> None:
    load, heard, gate = ServerConcurrency(max_notifications=2), list[int](), asyncio.Event()

    def notice(number: int) -> under_test.Work:
        async def hear() -> None:
            await gate.wait()
            heard.append(number)

        return hear

    taken = [load.queue_notification("a", notice(number)) for number in range(5)]
    # The first is being heard, two wait.
    assert taken == [True, True, True, False, False]
    gate.set()
    await breath()
    assert heard == [0, 1, 2]
    assert load.queue_notification("a", notice(5))
    await breath()
    assert heard[-1] == 5


async def test_one_that_fails_or_takes_too_long_keeps_no_other_from_being_heard(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(under_test, "HEAR_SECONDS", 0.01)
    load, heard = ServerConcurrency(), asyncio.Event()

    async def fails() -> None:
        raise RuntimeError

    async def waits() -> None:
        await asyncio.Event().wait()

    async def hears() -> None:
        heard.set()

    with caplog.at_level(logging.WARNING):
        for work in (fails, waits, hears):
            load.queue_notification("a", work)
        await asyncio.wait_for(heard.wait(), 30)
    assert "Reading from server" in caplog.text
    assert "took too long" in caplog.text


async def test_a_bug_in_an_answer_is_told(caplog: pytest.LogCaptureFixture) -> None:
    async def fails() -> None:
        raise RuntimeError

    with caplog.at_level(logging.ERROR):
        ServerConcurrency().start_answer("a", fails)
        await breath()
    assert "Answering server 'a' failed" in caplog.text


async def test_what_is_under_way_ends_with_its_server() -> None:
    load, ended = ServerConcurrency(), list[str]()

    def waiting(name: str) -> under_test.Work:
        async def wait() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(name)

        return wait

    load.start_answer("a", waiting("answer a"))
    load.queue_notification("a", waiting("hear a"))
    load.start_answer("b", waiting("answer b"))
    load.cancel_server("a")
    await breath()
    assert sorted(ended) == ["answer a", "hear a"]
    load.stop()
    await breath()
    assert ended[-1] == "answer b"


CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
ANSWER = jsonrpc.make_result("c-1", {"content": [], "state": {"checkpoint": "x"}})


def host(link: LinkRoom) -> LiveServer:
    return LiveServer("srv", link, DECLARED, DEFAULT_POLICY, frozenset())


@pytest.mark.parametrize(
    "fails", [MalformedMessage("no", ACCESS_DENIED), Unavailable("away"), RuntimeError("secret")]
)
async def test_one_that_may_not_go_is_answered_and_never_sent(
    fails: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    link = LinkRoom()
    call, frame = calling()
    with caplog.at_level(logging.CRITICAL):
        await send_call([Bearer(fails)], host(link), link, call, (frame, ()))
    assert link.sent == []
    assert call.client_stream.is_final
    call, _ = calling()
    with caplog.at_level(logging.CRITICAL):
        await answer_call([Bearer(fails)], host(link), call, ANSWER, 200)
    assert call.client_stream.is_final


async def test_a_link_that_is_gone_fails_the_call() -> None:
    link = LinkRoom()
    link.refuses = Unavailable("gone")
    call, frame = calling()
    await send_call([Bearer()], host(link), link, call, (frame, ()))
    assert call.client_stream.is_final


class Counted(ClientStream):
    """Counts last words."""

    words = 0

    def finish(self, data: bytes, status: int = 200) -> None:
        self.words += 1
        super().finish(data, status)


@pytest.mark.parametrize("fails", [None, Unavailable("away"), RuntimeError()])
async def test_a_call_that_ended_meanwhile_is_not_answered_twice(
    fails: Exception | None, caplog: pytest.LogCaptureFixture
) -> None:
    _, frame = calling()
    outbox = Counted()
    call = Call(frame, outbox, None, 0)
    call.refuse(ACCESS_DENIED, "meanwhile")
    with caplog.at_level(logging.CRITICAL):
        await send_call([Bearer(fails)], host(LinkRoom()), LinkRoom(), call, (frame, ()))
        await answer_call([Bearer(fails)], host(LinkRoom()), call, ANSWER, 200)
    assert outbox.words == 1


def test_a_modern_call_says_that_scopes_and_state_count() -> None:
    _, frame = calling(_meta={CAPABILITIES: {"roots": {}, "extensions": {"a/b": {}}}, "x": 1})
    said = params_of(announce_extension(frame))
    assert said["_meta"]["x"] == 1
    assert said["_meta"][CAPABILITIES] == {
        "roots": {},
        "extensions": {"a/b": {}, "dev.comity/mcpl": {"version": "0.4", "featureSets": True}},
    }
    assert not is_client_mcpl_host(frame)
    assert is_client_mcpl_host(announce_extension(frame))
    assert not is_client_mcpl_host(jsonrpc.make_request(1, "tools/call"))
    assert not is_client_mcpl_host(calling(_meta=7)[1])


type Respond = Callable[[Frame], None]


class Dealt:
    """Who deals with what comes back."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.responds: list[Respond] = []

    def __call__(self, link: LiveConnection, frame: Frame, respond: Respond) -> None:
        self.frames.append(frame)
        self.responds.append(respond)


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    soon = RetrySchedule(timedelta(0), timedelta(0))
    monkeypatch.setattr(reverse_channel, "RetrySchedule", lambda: soon)


def modern_link() -> LinkRoom:
    link = LinkRoom(modern=True)

    async def held(method: str, params: object) -> Frame:
        if method == mcpl.LISTEN:
            await asyncio.Event().wait()
        return jsonrpc.make_result(1, {})

    link.reply = held
    return link


async def test_it_is_opened_again_where_it_was_lost_and_not_where_there_is_none() -> None:
    link, dealt = LinkRoom(modern=True), Dealt()
    tries = 0

    async def lost(method: str, params: object) -> Frame:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise Unavailable("gone")
        return jsonrpc.make_error(1, METHOD_NOT_FOUND, "no such method")

    link.reply = lost
    ReverseChannel(link, dealt)
    await breath()
    assert tries == 3


async def test_with_the_link_it_ends() -> None:
    link = LinkRoom(modern=True)

    async def ends(method: str, params: object) -> Frame:
        link.is_open = False
        return jsonrpc.make_result(1, {})

    link.reply = ends
    ReverseChannel(link, Dealt())
    await breath()
    assert len(link.asked) == 1


async def test_what_is_carried_is_dealt_with_and_what_cannot_be_read_is_not() -> None:
    link, dealt = modern_link(), Dealt()
    way = ReverseChannel(link, dealt)
    way.on_message(
        jsonrpc.make_notification(
            mcpl.REVERSE_REQUEST, {"id": 7, "method": "push/event", "params": {}}
        )
    )
    way.on_message(
        jsonrpc.make_notification(
            mcpl.REVERSE_NOTIFICATION, {"method": "featureSets/changed", "id": 8}
        )
    )
    way.on_message(jsonrpc.make_notification(mcpl.REVERSE_REQUEST, {"method": "push/event"}))
    way.on_message(jsonrpc.make_notification(mcpl.REVERSE_REQUEST, {"method": 7}))
    assert [(each.method, each.id) for each in dealt.frames] == [
        ("push/event", 7),
        ("featureSets/changed", jsonrpc.UNSET),
    ]
    dealt.responds[0](jsonrpc.make_result(7, {"accepted": True}))
    dealt.responds[0](jsonrpc.make_error(7, METHOD_NOT_FOUND, "no"))
    await breath()
    (_, answer), (_, error) = [each for each in link.asked if each[0] == mcpl.RESPOND]
    assert (answer["id"], answer["result"]) == (7, {"accepted": True})
    assert error["error"]["code"] == -32601
    way.close()


async def test_who_takes_no_answers_gets_no_more_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reverse_channel, "MOST_ANSWERS", 2)
    monkeypatch.setattr(reverse_channel, "RESPOND_SECONDS", 0.01)
    link, dealt = LinkRoom(modern=True), Dealt()

    async def silent(method: str, params: object) -> Frame:
        await asyncio.Event().wait()
        raise AssertionError

    link.reply = silent
    way = ReverseChannel(link, dealt)
    way.on_message(
        jsonrpc.make_notification(mcpl.REVERSE_REQUEST, {"id": 7, "method": "push/event"})
    )
    for _ in range(5):
        dealt.responds[0](jsonrpc.make_result(7, {}))
    await breath()
    assert len([each for each in link.asked if each[0] == mcpl.RESPOND]) == 2
    way.close()
