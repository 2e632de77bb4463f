"""The promises of the kit: each of these tests breaks when its promise is broken."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from comity.app.records import open_store
from comity.errors import Misconfigured, Unavailable
from comity.identity import wiring
from comity.identity.authentication import LoginThrottle
from comity.policy.grants import Effect
from tests.kit import clock
from tests.kit.clients import Client
from tests.kit.clock import VirtualLoop, happens
from tests.kit.gateway import TestGateway, parse_grant, running_gateway
from tests.kit.marks import each_transport, on_virtual_time, virtual_time
from tests.kit.servers import LEGACY, MODERN, Json, ScriptedServer, echo_server, text_result

pytest_plugins = ["tests.kit.fixtures"]
event_loop_policy = virtual_time
pytestmark = on_virtual_time

NAME: Json = {
    "method": "elicitation/create",
    "params": {"message": "your name?", "requestedSchema": {"type": "object", "properties": {}}},
}
ACCEPT: Json = {"action": "accept", "content": {"name": "you"}}
FORM: Json = {"form": {}}

type GetGateway = Callable[[], Awaitable[TestGateway]]

each_version = pytest.mark.parametrize("version", [LEGACY, MODERN])


def sleep_on_a_loop_of_its_own(seconds: float) -> float:
    """How much `time.monotonic` moves while an ordinary loop sleeps."""

    async def sleep() -> float:
        before = time.monotonic()
        await asyncio.sleep(seconds)
        return time.monotonic() - before

    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        return runner.run(sleep())


# The clock.


async def test_an_hour_passes_at_once_and_for_everybody_who_asks_the_time() -> None:
    loop, begun, monotonic = asyncio.get_running_loop(), time.perf_counter(), time.monotonic()
    wake = loop.time() + 3600
    await asyncio.sleep(3600)
    assert wake <= loop.time() < wake + 1
    assert time.monotonic() - monotonic == pytest.approx(3600, abs=1)
    assert time.perf_counter() - begun < 600


async def test_timers_fire_in_the_order_of_their_times() -> None:
    fired: list[int] = []
    loop = asyncio.get_running_loop()
    for seconds in (30, 10, 20):
        loop.call_later(seconds, fired.append, seconds)
    await asyncio.sleep(31)
    assert fired == [10, 20, 30]


async def test_time_stands_still_while_a_thread_works() -> None:
    loop, may_end = asyncio.get_running_loop(), threading.Event()
    timer = asyncio.ensure_future(asyncio.sleep(3600))
    job = loop.run_in_executor(None, may_end.wait, 60)
    before = loop.time()
    threading.Timer(0.05, may_end.set).start()
    assert await job
    assert loop.time() == before
    timer.cancel()


def test_a_loop_in_which_nothing_will_ever_happen_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(clock, "_STUCK_SECONDS", 0.01)
    loop = VirtualLoop()
    with pytest.raises(AssertionError, match="nothing will ever happen"):
        loop.run_until_complete(loop.create_future())
    loop.close()


async def test_a_wait_for_what_never_happens_ends() -> None:
    with pytest.raises(TimeoutError):
        await happens(lambda: False)


def test_the_time_of_the_machine_holds_on_every_other_loop() -> None:
    assert sleep_on_a_loop_of_its_own(0.01) == pytest.approx(0, abs=30)
    first, second = time.monotonic(), time.monotonic()
    assert first <= second


async def test_the_time_of_the_machine_holds_in_other_threads() -> None:
    loop = asyncio.get_running_loop()
    moved = await loop.run_in_executor(None, sleep_on_a_loop_of_its_own, 0.01)
    assert 0 < moved < 60
    here = time.monotonic()
    assert await loop.run_in_executor(None, time.monotonic) != here


def test_parameters_of_comity_hold_the_clock_of_the_kit() -> None:
    defaults = LoginThrottle.__init__.__defaults__
    assert defaults is not None
    assert clock.monotonic in defaults


# Servers and clients.


@each_version
async def test_an_echo_comes_back_to_a_client_of_either_version(version: str) -> None:
    async with running_gateway(servers=[echo_server()]) as gateway:
        client = await gateway.connect(version=version)
        assert (await client.call_tool("echo__say", {"text": "hi"})).text == "hi"


@pytest.mark.parametrize("server_version", [LEGACY, MODERN])
@each_version
async def test_each_version_of_a_client_reaches_each_version_of_a_server(
    gateway: TestGateway, version: str, server_version: str
) -> None:
    server = await gateway.add(ScriptedServer(version=server_version))
    server.answers("t", text_result("reached"))
    client = await gateway.connect(to=server, version=version)
    assert (await client.call_tool("t")).text == "reached"
    meta = server.calls[0].params.get("_meta", {})
    assert meta.get("io.modelcontextprotocol/protocolVersion") == (
        MODERN if server_version == MODERN else None
    )
    await gateway.remove(server)


@each_transport
async def test_a_call_waits_for_the_hand_of_the_test(
    client: Client, server: ScriptedServer
) -> None:
    first, second = client.begin_call("t", {"n": 1}), client.begin_call("t", {"n": 2})
    arrived = await server.called(2)
    assert [call.params["arguments"]["n"] for call in server.calls] == [1, 2]
    arrived.answers()
    assert (await second.reply()).text == "done"
    assert first.is_open
    server.calls[0].fails(-32602, "not this")
    reply = await first.reply()
    assert (reply.error["code"], reply.error["message"]) == (-32602, "not this")


async def test_a_call_that_nobody_answers_ends_at_the_deadline_of_the_settings() -> None:
    seven = timedelta(seconds=7)
    slow = ScriptedServer("slow")
    async with running_gateway(servers=[slow], limits_call_idle_timeout=seven) as gateway:
        call = (await gateway.connect()).begin_call("slow__t")
        before = asyncio.get_running_loop().time()
        assert (await call.reply()).refused == "timeout"
        assert asyncio.get_running_loop().time() - before == pytest.approx(7.5, abs=1)


async def test_a_legacy_server_asks_and_a_legacy_client_answers(gateway: TestGateway) -> None:
    server = await gateway.add(ScriptedServer(version=LEGACY))
    client = await gateway.connect(to=server, elicitation=FORM)
    call = client.begin_call("t")
    arrived = await server.called()
    answer = asyncio.ensure_future(arrived.asks(NAME["method"], NAME["params"]))
    await client.answer(await call.question(), ACCEPT)
    assert (await answer)["result"] == ACCEPT
    arrived.answers()
    assert (await call.reply()).text == "done"
    await gateway.remove(server)


async def test_a_modern_server_wants_input_and_a_modern_client_makes_its_call_again(
    gateway: TestGateway, server: ScriptedServer
) -> None:
    client = await gateway.connect(to=server, version=MODERN, elicitation=FORM)
    first = client.begin_call("t", {"a": 1})
    (await server.called()).wants({"name": NAME}, "state")
    second = await client.retry(first, {"name": ACCEPT})
    again = await server.called(2)
    assert again.params["inputResponses"] == {"name": ACCEPT}
    assert (again.params["requestState"], again.params["arguments"]) == ("state", {"a": 1})
    again.answers()
    assert (await second.reply()).text == "done"


async def test_progress_reaches_a_client_that_wants_it(
    client: Client, server: ScriptedServer
) -> None:
    call = client.begin_call("t", _meta={"progressToken": "p"})
    arrived = await server.called()
    arrived.progresses(1, 2)
    arrived.answers()
    await call.reply()
    (progress,) = call.notifications
    assert (progress["params"]["progress"], progress["params"]["total"]) == (1, 2)


@each_transport
@each_version
async def test_a_call_that_its_client_withdraws_is_withdrawn_at_the_server(
    gateway: TestGateway, server: ScriptedServer, version: str
) -> None:
    client = await gateway.connect(to=server, version=version)
    call = client.begin_call("t")
    arrived = await server.called()
    assert not arrived.is_withdrawn
    await client.cancel(call)
    await happens(lambda: arrived.is_withdrawn)


async def test_a_server_that_crashes_fails_its_calls(
    client: Client, server: ScriptedServer
) -> None:
    call = client.begin_call("t")
    await server.called()
    server.crashes()
    assert (await call.reply()).refused.startswith(("server_", "upstream_"))


async def test_a_message_that_cannot_be_sent_is_refused(
    client: Client, server: ScriptedServer
) -> None:
    server.send_error = Unavailable("the pipe is full")
    assert (await client.call_tool("t")).refused == "upstream_failed"


async def test_a_server_that_changes_its_tools_offers_others(
    client: Client, server: ScriptedServer
) -> None:
    async def offers(*names: str) -> bool:
        tools = (await client.request("tools/list")).result["tools"]
        return [tool["name"] for tool in tools] == [*names]

    assert await offers("t")
    server.changes_tools("u", "v")
    async with asyncio.timeout(60):
        while not await offers("u", "v"):
            await asyncio.sleep(0.1)


async def test_a_client_comes_back_to_a_stream_that_broke(
    gateway: TestGateway, server: ScriptedServer
) -> None:
    client = await gateway.connect(to=server, elicitation=FORM)
    call = client.begin_call("t")
    (await server.called()).wants({"name": NAME})
    question = await call.question()
    resumed = client.resume(call, after=call.exchange.event_ids[0])
    assert await resumed.question() == question
    await client.answer(question, ACCEPT)
    (await server.called(2)).answers()
    assert (await resumed.reply()).text == "done"


async def test_a_question_is_no_answer_and_an_answer_no_question(
    gateway: TestGateway, server: ScriptedServer
) -> None:
    client = await gateway.connect(to=server, elicitation=FORM)
    call = client.begin_call("t")
    (await server.called()).wants({"name": NAME})
    with pytest.raises(AssertionError, match="a question instead of an answer"):
        await call.reply()
    await client.cancel(call)
    call = client.begin_call("t")
    (await server.called(2)).answers()
    with pytest.raises(AssertionError, match="an answer instead of a question"):
        await call.question()


async def test_a_session_that_its_client_has_left_is_gone(client: Client) -> None:
    await client.leave()
    assert client.begin("tools/list").exchange.status == 0
    call = client.begin("tools/list")
    await call.exchange.finish()
    assert call.exchange.status == 404


# The gateway.


@pytest.mark.parametrize(
    ("sentence", "effect", "verb"),
    [
        ("agent:ci may call echo/*", Effect.ALLOW, "tools/call"),
        ("agent:ci may not call echo/say", Effect.DENY, "tools/call"),
        ("agent:ci must ask to call echo/*", Effect.ASK, "tools/call"),
        ("person:ana may answer *", Effect.ALLOW, "approval/answer"),
        ("person:ana may admin/read *", Effect.ALLOW, "admin/read"),
    ],
)
def test_a_grant_is_a_sentence(sentence: str, effect: Effect, verb: str) -> None:
    grant = parse_grant(sentence)
    assert (grant.effect, grant.verb) == (effect, verb)
    assert grant.subject == sentence.partition(" ")[0]
    assert grant.target == sentence.rpartition(" ")[2]


def test_a_sentence_that_is_no_grant_is_refused() -> None:
    for sentence in ("agent:ci calls echo/*", "agent:ci may call", "may call echo/*"):
        with pytest.raises((ValueError, Misconfigured)):
            parse_grant(sentence)


def test_the_grammar_of_the_configuration_checks_the_words_of_a_grant() -> None:
    for sentence in ("a\u200bb may call echo/*", "agent:ci may call a\u200bb/*"):
        with pytest.raises(Misconfigured):
            parse_grant(sentence)


async def test_a_principal_may_call_what_a_grant_names_and_nothing_else() -> None:
    servers = [echo_server(), echo_server("other")]
    async with running_gateway(servers=servers, grants=["agent:ci may call echo/*"]) as gateway:
        client = await gateway.connect("agent:ci")
        assert (await client.call_tool("echo__say", {"text": "hi"})).text == "hi"
        assert (await client.call_tool("other__say", {"text": "hi"})).refused == "access_denied"
        assert [len(server.calls) for server in servers] == [1, 0]


async def test_a_principal_without_a_grant_has_a_key_and_may_call_nothing() -> None:
    async with running_gateway(servers=[echo_server()], principals=["agent:new"]) as gateway:
        client = await gateway.connect("agent:new")
        assert (await client.request("tools/list")).result["tools"] == []
        await gateway.grant("agent:new may call echo/*")
        assert (await client.call_tool("echo__say", {"text": "hi"})).text == "hi"


async def test_a_name_that_was_not_added_has_no_key(gateway: TestGateway) -> None:
    with pytest.raises(AssertionError, match="no principal 'agent:stranger'"):
        await gateway.connect("agent:stranger")


ASKS = ("agent:ci must ask to call echo/*", "person:ana may answer *")


async def test_a_person_approves_a_call_and_it_runs() -> None:
    server = echo_server()
    async with running_gateway(servers=[server], grants=ASKS) as gateway:
        call = (await gateway.connect("agent:ci")).begin_call("echo__say", {"text": "hi"})
        (approval,) = await gateway.person("person:ana").pending()
        assert approval["tool"] == "say"
        assert not server.calls
        assert (await gateway.person("person:ana").approves()).status == 200
        assert (await call.reply()).text == "hi"


async def test_a_person_declines_a_call_and_it_never_runs() -> None:
    server = echo_server()
    async with running_gateway(servers=[server], grants=ASKS) as gateway:
        call = (await gateway.connect("agent:ci")).begin_call("echo__say", {"text": "hi"})
        assert (await gateway.person("person:ana").declines()).status == 200
        assert (await call.reply()).refused == "declined"
        assert not server.calls


async def test_the_operator_uses_the_api(gateway: TestGateway, server: ScriptedServer) -> None:
    reply = await gateway.api("GET", "/api/servers?limit=50")
    assert reply.status == 200
    assert server.name in str(reply.body)


async def test_a_server_that_is_removed_leaves_nothing_behind(gateway: TestGateway) -> None:
    server = await gateway.add(ScriptedServer())
    client = await gateway.connect(to=server)
    await gateway.remove(server)
    call = client.begin("tools/list")
    await call.exchange.finish()
    assert call.exchange.status == 404
    assert not server.open_transports


async def test_a_gateway_that_a_test_leaves_unquiet_is_spoiled() -> None:
    server = ScriptedServer("slow")
    async with running_gateway(servers=[server]) as gateway:
        (await gateway.connect()).begin_call("slow__t")
        await server.called()
        with pytest.raises(AssertionError, match="left open"):
            await gateway.becomes_quiet()
        assert gateway.is_spoiled


async def leave_a_call_open(then: Callable[[], object] = lambda: None) -> None:
    server = ScriptedServer("slow")
    async with running_gateway(servers=[server]) as gateway:
        (await gateway.connect()).begin_call("slow__t")
        await server.called()
        then()


async def test_a_gateway_has_to_be_quiet_at_its_end() -> None:
    with pytest.raises(AssertionError, match="left open"):
        await leave_a_call_open()


async def test_what_fails_amid_a_test_is_not_hidden_by_what_it_leaves() -> None:
    with pytest.raises(ZeroDivisionError):
        await leave_a_call_open(lambda: 1 / 0)


async def test_a_server_is_connected_to_once(server: ScriptedServer) -> None:
    await asyncio.sleep(5)
    assert len(server.open_transports) == 1


async def test_a_module_shares_its_gateway_until_that_is_spoiled(
    usable_gateway: GetGateway,
) -> None:
    first = await usable_gateway()
    assert await usable_gateway() is first
    first.is_spoiled = True
    second = await usable_gateway()
    assert second is not first
    assert await usable_gateway() is second


async def test_only_the_store_of_a_gateway_of_the_kit_is_inline(gateway: TestGateway) -> None:
    assert wiring.open_store is open_store
    assert not any("aiosqlite" in thread.name for thread in threading.enumerate())
    assert gateway.parts.snapshot.records is not None


def test_a_gateway_runs_on_an_ordinary_loop_too() -> None:
    async def call_once() -> str:
        async with running_gateway(servers=[echo_server()]) as gateway:
            client = await gateway.connect()
            return (await client.call_tool("echo__say", {"text": "hi"})).text

    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        assert runner.run(call_once()) == "hi"
