"""Calls made again: only where an operator allows it, within one deadline, with one answer."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from comity.kernel.retrying import FALLBACK_KEY, Retries
from comity.rules.policies import ServerPolicy, ToolPolicy
from comity.wire import jsonrpc, mcp
from comity.wire.errors import ACCESS_DENIED, UPSTREAM_DOWN, MalformedMessage, Unavailable
from comity.wire.jsonrpc import Frame
from tests.kernel.carriers import Params, Script, params_of, result_of, settled, until
from tests.kernel.desks import Asked, Front, all_servers, one_server
from tests.kernel.refused import refusal_in

SOON: Params = {"retryable": True, "retry_after_ms": 1, "retry_strategy": "fixed_delay"}
ADD, OTHER = "a__add", "b__add"
DONE: Params = {"content": [{"type": "text", "text": "done"}]}
SAFE = ToolPolicy(idempotent=True, max_retries=2)

TOOLS: Params = {
    "tools": [
        {"name": "add"},
        {"name": "spare"},
        {"name": "read", "annotations": {"readOnlyHint": True}},
    ]
}


def silent(modern: bool = False) -> Script:
    """A server that answers calls when the test says so."""
    return Script(modern=modern, handshake=not modern, replies={mcp.LIST_TOOLS: TOOLS})


def policies(**tools: ToolPolicy) -> dict[str, ServerPolicy]:
    return {"a": ServerPolicy(tools=tools), "srv": ServerPolicy(tools=tools)}


@asynccontextmanager
async def fronts(
    tools: dict[str, ToolPolicy], read_only: int = 0, modern: bool = False
) -> AsyncGenerator[Front]:
    """Two servers, `a` and `b`, of which `a` has tools with these policies."""
    async with all_servers({"a": silent(modern), "b": silent(modern)}) as front:
        found = policies(**tools)
        front.gate.retries = Retries(found.get, read_only, chance=lambda: 0.0)
        yield front


def calls(front: Front, name: str = "a") -> list[Frame]:
    """What a server saw of calls, in all its links."""
    carriers = front.scripts[name].carriers
    return [frame for each in carriers for frame in each.asked(mcp.CALL_TOOL)]


async def seen(front: Front, count: int, name: str = "a") -> Frame:
    await until(lambda: len(calls(front, name)) >= count)
    return calls(front, name)[count - 1]


def fail(front: Front, asked: Frame, code: int = 3000, name: str = "a", **mgp: object) -> None:
    """The server answers this call with an error of MGP."""
    error = {"code": code, "message": "not now", "data": {"_mgp": {**SOON, **mgp}}}
    carrier = next(c for c in front.scripts[name].open if asked in c.asked(mcp.CALL_TOOL))
    carrier.says(Frame("2.0", asked.id, error=jsonrpc.to_raw(error)), asked)


def do(front: Front, asked: Frame, name: str = "a") -> None:
    carrier = next(c for c in front.scripts[name].open if asked in c.asked(mcp.CALL_TOOL))
    carrier.answers(asked, DONE)


async def call(front: Front, tool: str = ADD, modern: bool = False) -> Asked:
    params: Params = {"name": tool, "arguments": {"x": 1}}
    if modern:
        return front.ask_modern(mcp.CALL_TOOL, params)
    return front.ask(await front.client(), mcp.CALL_TOOL, params)


def figure(front: Front, name: str) -> dict[tuple[str, ...], object]:
    assert front.gate.retries is not None
    family = next(each for each in front.gate.retries.families() if each.name == name)
    return {tuple(value for _, value in labels): count for labels, count in family.samples}


both_eras = pytest.mark.parametrize("modern", [False, True], ids=["handshake", "modern"])


@both_eras
@pytest.mark.parametrize("server_modern", [False, True], ids=["to_handshake", "to_modern"])
async def test_a_tool_that_may_be_called_twice_is_called_again_and_its_answer_is_the_answer(
    modern: bool, server_modern: bool
) -> None:
    async with fronts({"add": SAFE}, modern=server_modern) as front:
        asked = await call(front, modern=modern)
        fail(front, await seen(front, 1))
        second = await seen(front, 2)
        assert params_of(second)["arguments"] == {"x": 1}
        do(front, second)
        assert (await asked.result())["content"] == DONE["content"]
        assert figure(front, "comity_retries_total") == {("a", "add", "rate_limited"): 1}


@pytest.mark.parametrize(
    "tools",
    [
        {},
        {"add": ToolPolicy()},
        {"add": ToolPolicy(max_retries=5)},
        {"add": ToolPolicy(idempotent=True)},
        {"spare": SAFE},
    ],
)
async def test_a_server_alone_never_has_its_tool_called_again(
    tools: dict[str, ToolPolicy],
) -> None:
    async with fronts(tools) as front:
        asked = await call(front)
        fail(front, await seen(front, 1), max_retries=9)
        assert (await asked.error()).code == 3000
        await settled()
        assert len(calls(front)) == 1
        assert figure(front, "comity_retries_total") == {}


async def test_what_a_server_forbids_is_not_repeated() -> None:
    async with fronts({"add": SAFE}) as front:
        asked = await call(front)
        fail(front, await seen(front, 1), retryable=False)
        assert (await asked.error()).code == 3000
        assert len(calls(front)) == 1


async def test_the_operators_number_of_retries_is_the_most_and_the_last_error_is_told() -> None:
    async with fronts({"add": SAFE}) as front:
        asked = await call(front)
        for number in (1, 2, 3):
            fail(front, await seen(front, number), 3000 + number, max_retries=50)
        assert (await asked.error()).code == 3003
        await settled()
        assert len(calls(front)) == 3


async def test_what_reads_only_is_repeated_where_the_operator_said_so() -> None:
    async with fronts({}, read_only=1) as front:
        asked = await call(front, "a__read")
        fail(front, await seen(front, 1))
        do(front, await seen(front, 2))
        assert "content" in await asked.result()
        again = await call(front, ADD)
        fail(front, await seen(front, 3))
        assert (await again.error()).code == 3000


async def test_a_hint_alone_is_no_reason() -> None:
    async with fronts({"spare": SAFE}) as front:
        asked = await call(front, "a__read")
        fail(front, await seen(front, 1))
        assert (await asked.error()).code == 3000


async def test_a_link_that_broke_is_opened_anew_for_the_next_attempt() -> None:
    async with fronts({"add": SAFE}) as front:
        asked = await call(front)
        await seen(front, 1)
        front.scripts["a"].last.dies()
        do(front, await seen(front, 2))
        assert "content" in await asked.result()
        assert figure(front, "comity_retries_total") == {("a", "add", "upstream_failed"): 1}


async def test_what_was_never_sent_may_be_sent_again_whatever_it_does() -> None:
    async with fronts({"add": ToolPolicy(max_retries=2)}) as front:
        client = await front.client()
        first = front.ask(client, mcp.CALL_TOOL, {"name": ADD})
        do(front, await seen(front, 1))
        await first.result()
        front.scripts["a"].last.breaks = Unavailable("the pipe is full", UPSTREAM_DOWN)
        asked = front.ask(client, mcp.CALL_TOOL, {"name": ADD})
        await settled()
        front.scripts["a"].last.breaks = None
        do(front, await seen(front, 2))
        assert "content" in await asked.result()


async def test_a_call_that_is_withdrawn_in_a_pause_is_not_made_again() -> None:
    async with fronts({"add": SAFE}) as front:
        asked = await call(front)
        fail(front, await seen(front, 1), retry_after_ms=60)
        (await asked.asking).withdraw(None)
        await asyncio.sleep(0.12)
        await settled()
        assert len(calls(front)) == 1
        assert asked.outbox.take() == []


async def test_there_is_no_attempt_for_which_the_deadline_leaves_no_time() -> None:
    async with fronts({"add": SAFE}) as front:
        asked = await call(front)
        first = await seen(front, 1)
        front.clock.passes(59)
        fail(front, first, retry_after_ms=2000)
        assert (await asked.error()).code == 3000
        assert len(calls(front)) == 1


async def test_a_deadline_that_passes_in_a_pause_says_that_the_tool_may_have_run() -> None:
    async with fronts({"add": SAFE}) as front:
        asked = await call(front)
        fail(front, await seen(front, 1), retry_after_ms=20_000)
        front.clock.passes(61)
        front.underway.look(15)
        refusal = await asked.refusal()
        assert refusal["error_type"] == "timeout"
        assert refusal["details"] == {
            "outcome": "unknown",
            "timeout_ms": 60_000,
            "tool_name": "add",
        }
        assert refusal["retryable"] is True


async def test_every_attempt_is_told_to_whoever_wants_to_hear() -> None:
    heard: list[tuple[int, str]] = []
    async with fronts({"add": SAFE}) as front:
        assert front.gate.retries is not None
        front.gate.retries.told.append(lambda call, attempt, why: heard.append((attempt, why)))
        asked = await call(front)
        fail(front, await seen(front, 1))
        fail(front, await seen(front, 2), 5001)
        do(front, await seen(front, 3))
        await asked.result()
    assert heard == [(1, "rate_limited"), (2, "upstream_slow")]


SPARE = ToolPolicy(idempotent=True, fallback_tool="spare")


@both_eras
@pytest.mark.parametrize(
    ("fallback", "server", "name"), [("spare", "a", "spare"), (OTHER, "b", "add")]
)
async def test_another_tool_is_called_when_the_operator_named_one(
    modern: bool, fallback: str, server: str, name: str
) -> None:
    tools = {"add": ToolPolicy(idempotent=True, fallback_tool=fallback)}
    async with fronts(tools) as front:
        asked = await call(front, modern=modern)
        fail(front, await seen(front, 1))
        other = await seen(front, 2 if server == "a" else 1, server)
        assert params_of(other)["name"] == name
        assert params_of(other)["arguments"] == {"x": 1}
        do(front, other, server)
        result = await asked.result()
        assert result["content"] == DONE["content"]
        meta = result["_meta"]
        assert isinstance(meta, dict)
        assert meta[FALLBACK_KEY] == {"tool": f"{server}__{name}", "instead_of": ADD}
        assert figure(front, "comity_fallbacks_total") == {("a", "add"): 1}


async def test_a_servers_own_wish_for_another_tool_is_not_followed() -> None:
    async with fronts({"add": SAFE}) as front:
        asked = await call(front)
        for number in (1, 2, 3):
            fail(front, await seen(front, number), fallback_tool="spare")
        assert (await asked.error()).code == 3000
        assert {params_of(frame)["name"] for frame in calls(front)} == {"add"}


async def test_another_tool_that_may_not_be_called_changes_nothing_of_the_error() -> None:
    async with fronts({"add": SPARE}) as front:
        find = front.gate.find

        def refuse(call: object, kind: object, key: str | None) -> object:
            if key == "a__spare":
                raise MalformedMessage("not for you", ACCESS_DENIED)
            return find(call, kind, key)  # type: ignore[arg-type]

        front.gate.find = refuse  # type: ignore[method-assign,assignment]
        asked = await call(front)
        fail(front, await seen(front, 1))
        assert (await asked.error()).code == 3000
        assert len(calls(front)) == 1


async def test_another_tool_that_fails_too_changes_nothing_of_the_error() -> None:
    async with fronts({"add": SPARE}) as front:
        asked = await call(front)
        fail(front, await seen(front, 1))
        fail(front, await seen(front, 2), 5000)
        assert (await asked.error()).code == 3000


async def test_another_tool_that_asks_its_caller_something_is_no_help() -> None:
    async with fronts({"add": SPARE}, modern=True) as front:
        asked = await call(front, modern=True)
        fail(front, await seen(front, 1))
        other = await seen(front, 2)
        wanted: Params = {"resultType": "input_required", "inputRequests": {}, "requestState": "x"}
        front.scripts["a"].open[-1].answers(other, wanted)
        assert (await asked.error()).code == 3000


async def test_withdrawing_the_call_withdraws_the_other_one() -> None:
    async with fronts({"add": SPARE}) as front:
        asked = await call(front)
        fail(front, await seen(front, 1))
        await seen(front, 2)
        (await asked.asking).withdraw(None)
        await settled()
        told = [frame.method for each in front.scripts["a"].carriers for frame in each.told()]
        assert "notifications/cancelled" in told


async def test_a_tool_that_may_have_run_and_nobody_marked_is_not_replaced() -> None:
    async with fronts({"add": ToolPolicy(fallback_tool="spare")}) as front:
        asked = await call(front)
        fail(front, await seen(front, 1))
        assert (await asked.error()).code == 3000
        died = await call(front)
        await seen(front, 2)
        front.scripts["a"].last.dies()
        refusal = await died.refusal()
        assert refusal["details"] == {"outcome": "unknown"}
        assert refusal["fallback_tool"] == "a__spare"
        assert {params_of(frame)["name"] for frame in calls(front)} == {"add"}


@both_eras
async def test_at_a_servers_own_door_its_calls_are_made_again_and_replaced_by_its_own(
    modern: bool,
) -> None:
    async with one_server(silent()) as front:
        tools = {"add": ToolPolicy(idempotent=True, max_retries=1, fallback_tool="srv__spare")}
        front.gate.retries = Retries(policies(**tools).get, chance=lambda: 0.0)
        asked = await call(front, "add", modern)
        fail(front, await seen(front, 1, "srv"), name="srv")
        fail(front, await seen(front, 2, "srv"), name="srv")
        other = await seen(front, 3, "srv")
        assert params_of(other)["name"] == "spare"
        do(front, other, "srv")
        assert (await asked.result())["content"] == DONE["content"]


async def test_at_a_servers_own_door_no_other_server_is_called() -> None:
    async with one_server(silent()) as front:
        tools = {"add": ToolPolicy(idempotent=True, fallback_tool=OTHER)}
        front.gate.retries = Retries(policies(**tools).get, chance=lambda: 0.0)
        asked = await call(front, "add")
        fail(front, await seen(front, 1, "srv"), name="srv")
        answer = await asked.answer()
        assert refusal_in(answer) is not None


async def test_an_answer_is_not_looked_at_again() -> None:
    async with fronts({"add": SAFE}) as front:
        asked = await call(front)
        first = await seen(front, 1)
        front.scripts["a"].last.answers(first, {"content": [], "isError": True})
        assert result_of(await asked.answer())["isError"] is True
        assert len(calls(front)) == 1
