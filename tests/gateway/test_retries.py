"""Retries and fallbacks: when a failed call is made again, and what its client is told."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from comity import errors
from comity.errors import ACCESS_DENIED, UPSTREAM_DOWN, Fault, MalformedMessage, Unavailable
from comity.gateway.retries import (
    FALLBACK_KEY,
    FIRST_RETRY_DELAY,
    MAX_RETRY_DELAY,
    RETRY_JITTER,
    AttemptFailure,
    RetryPlan,
    RetryService,
    failure_from_server,
    failure_of_fault,
    may_be_retried,
    retry_delay,
)
from comity.mcp import jsonrpc, protocol
from comity.mcp.jsonrpc import Frame
from comity.policy.risk import ServerPolicy, ToolPolicy
from tests.support.carriers import Params, Script, params_of, result_of, settled, until
from tests.support.cases import loop_over
from tests.support.desks import Asked, Front, all_servers, one_server
from tests.support.refused import refusal_in

SAFE = RetryPlan(idempotent=True, max_retries=3)
UNMARKED = RetryPlan(idempotent=False, max_retries=3)
FAULTS = {name: found for name, found in vars(errors).items() if isinstance(found, Fault)}


def said(code: int = 3000, **recovery: object) -> AttemptFailure:
    error = {"code": code, "message": "m", "data": {"_mgp": recovery}}
    return failure_from_server(Frame("2.0", 1, error=jsonrpc.to_raw(error)))


anything = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**30), 10**30),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=5),
    st.lists(st.integers(), max_size=2),
)


MEMBERS = ("retryable", "retry_after_ms", "max_retries", "retry_strategy", "idempotent")


@given(st.integers(-40000, 40000), st.dictionaries(st.sampled_from(MEMBERS), anything))
def test_whatever_a_server_says_a_tool_that_nobody_marked_is_not_called_again(
    code: int, recovery: dict[str, Any]
) -> None:
    failure = said(code, **{"retryable": True, "max_retries": 9, **recovery})
    assert not may_be_retried(UNMARKED, failure)
    assert retry_delay(UNMARKED, failure, 0, 0.5) is None


@given(
    retry_after_ms=anything,
    max_retries=anything,
    retry_strategy=st.one_of(
        anything, st.sampled_from(["immediate", "fixed_delay", "exponential_backoff"])
    ),
    made=st.integers(0, 5),
    chance=st.floats(0, 1, exclude_max=True),
)
def test_what_is_waited_is_never_less_than_was_asked_for_and_never_endless(
    made: int, chance: float, **recovery: Any
) -> None:
    failure = said(retryable=True, **recovery)
    wait = retry_delay(SAFE, failure, made, chance)
    if wait is not None:
        assert made < SAFE.max_retries
        assert failure.retry_after <= wait <= MAX_RETRY_DELAY * RETRY_JITTER.most


@loop_over("retryable", [False, None, 1, "true", {}])
def test_retryable_must_be_true_literal(retryable: object) -> None:
    assert retry_delay(SAFE, said(retryable=retryable), 0, 0) is None
    plain = Frame("2.0", 1, error=jsonrpc.to_raw({"code": 3000, "message": "m"}))
    assert retry_delay(SAFE, failure_from_server(plain), 0, 0) is None


@loop_over("code", [-32603, -32001, 0, 999, 6000])
def test_an_error_that_is_none_of_mgp_says_nothing_of_retries(code: int) -> None:
    assert retry_delay(SAFE, said(code, retryable=True), 0, 0) is None


@loop_over(
    ("strategy", "after", "waits"),
    [
        ("immediate", 0, [0, 0, 0, None]),
        ("immediate", 400, [400, 400, 400, None]),
        ("fixed_delay", 400, [400, 400, 400, None]),
        ("fixed_delay", 0, [250, 250, 250, None]),
        ("exponential_backoff", 400, [400, 800, 1600, None]),
        ("exponential_backoff", 0, [250, 500, 1000, None]),
        ("of its own", 400, [400, 800, 1600, None]),
        ("exponential_backoff", 29_000, [29_000, 30_000, 30_000, None]),
        ("fixed_delay", 30_001, [None]),
    ],
)
def test_waits_follow_the_strategy(strategy: str, after: int, waits: list[int | None]) -> None:
    failure = said(retryable=True, retry_strategy=strategy, retry_after_ms=after)
    for made, wait in enumerate(waits):
        found = retry_delay(SAFE, failure, made, 0)
        assert found == (None if wait is None else timedelta(milliseconds=wait))


@loop_over(("asked", "made"), [(0, 0), (1, 1), (2, 2), (9, 3), (-1, 0), ("x", 3)])
def test_the_smaller_number_of_retries_counts(asked: object, made: int) -> None:
    failure = said(retryable=True, max_retries=asked)
    attempts = [retry_delay(SAFE, failure, number, 0) is not None for number in range(5)]
    assert attempts.count(True) == made


def test_retry_delay_has_jitter() -> None:
    failure = said(retryable=True, retry_after_ms=1000, retry_strategy="fixed_delay")
    assert retry_delay(SAFE, failure, 0, 0.5) == timedelta(milliseconds=1125)


@loop_over("fault", FAULTS.values(), ids=FAULTS.keys())
@loop_over("sent", [True, False])
def test_a_failure_on_the_way_is_repeated_where_it_may_pass(fault: Fault, sent: bool) -> None:
    failure = failure_of_fault(fault, None, was_sent=sent)
    may_pass = fault.retryable and fault is not errors.TIMEOUT
    assert (retry_delay(SAFE, failure, 0, 0) == FIRST_RETRY_DELAY) is may_pass
    in_doubt = (
        *(errors.INTERRUPTED, errors.UPSTREAM_FAILED, errors.UPSTREAM_SLOW),
        errors.CUT_OFF,
    )
    never_ran = not sent or fault not in in_doubt
    assert (retry_delay(UNMARKED, failure, 0, 0) is not None) is (may_pass and never_ran)


def test_a_server_that_says_when_it_is_back_is_waited_for() -> None:
    failure = failure_of_fault(errors.SERVER_RESTARTING, timedelta(seconds=2), was_sent=False)
    assert retry_delay(SAFE, failure, 2, 0) == timedelta(seconds=2)


# Calls.


SOON: Params = {"retryable": True, "retry_after_ms": 1, "retry_strategy": "fixed_delay"}
ADD, OTHER = "a__add", "b__add"
DONE: Params = {"content": [{"type": "text", "text": "done"}]}
SAFE_TOOL = ToolPolicy(idempotent=True, max_retries=2)

TOOLS: Params = {
    "tools": [
        {"name": "add"},
        {"name": "spare"},
        {"name": "read", "annotations": {"readOnlyHint": True}},
    ]
}


def silent(modern: bool = False) -> Script:
    """A server that answers calls when the test says so."""
    return Script(modern=modern, handshake=not modern, replies={protocol.LIST_TOOLS: TOOLS})


def policies(**tools: ToolPolicy) -> dict[str, ServerPolicy]:
    return {"a": ServerPolicy(tools=tools), "srv": ServerPolicy(tools=tools)}


@asynccontextmanager
async def fronts(
    tools: dict[str, ToolPolicy], read_only: int = 0, modern: bool = False
) -> AsyncGenerator[Front]:
    """Two servers, `a` and `b`, of which `a` has tools with these policies."""
    async with all_servers({"a": silent(modern), "b": silent(modern)}) as front:
        found = policies(**tools)
        front.call_gate.retries = RetryService(found.get, read_only, random_value=lambda: 0.0)
        yield front


def calls(front: Front, name: str = "a") -> list[Frame]:
    """What a server saw of calls, in all its links."""
    carriers = front.scripts[name].carriers
    return [frame for each in carriers for frame in each.asked(protocol.CALL_TOOL)]


async def seen(front: Front, count: int, name: str = "a") -> Frame:
    await until(lambda: len(calls(front, name)) >= count)
    return calls(front, name)[count - 1]


def fail(front: Front, asked: Frame, code: int = 3000, name: str = "a", **mgp: object) -> None:
    """The server answers this call with an error of MGP."""
    error = {"code": code, "message": "not now", "data": {"_mgp": {**SOON, **mgp}}}
    carrier = next(c for c in front.scripts[name].open if asked in c.asked(protocol.CALL_TOOL))
    carrier.says(Frame("2.0", asked.id, error=jsonrpc.to_raw(error)), asked)


def do(front: Front, asked: Frame, name: str = "a") -> None:
    carrier = next(c for c in front.scripts[name].open if asked in c.asked(protocol.CALL_TOOL))
    carrier.answers(asked, DONE)


async def call(front: Front, tool: str = ADD, modern: bool = False) -> Asked:
    params: Params = {"name": tool, "arguments": {"x": 1}}
    if modern:
        return front.handle_modern_request(protocol.CALL_TOOL, params)
    return front.ask(await front.client(), protocol.CALL_TOOL, params)


def figure(front: Front, name: str) -> dict[tuple[str, ...], object]:
    family = next(each for each in front.call_gate.retries.metric_families() if each.name == name)
    return {tuple(value for _, value in labels): count for labels, count in family.samples}


both_eras = loop_over("modern", [False, True], ids=["handshake", "modern"])


@both_eras
@loop_over("server_modern", [False, True], ids=["to_handshake", "to_modern"])
async def test_a_tool_that_may_be_called_twice_is_called_again_and_its_answer_is_the_answer(
    modern: bool, server_modern: bool
) -> None:
    async with fronts({"add": SAFE_TOOL}, modern=server_modern) as front:
        asked = await call(front, modern=modern)
        fail(front, await seen(front, 1))
        second = await seen(front, 2)
        assert params_of(second)["arguments"] == {"x": 1}
        do(front, second)
        assert (await asked.result())["content"] == DONE["content"]
        assert figure(front, "comity_retries_total") == {("a", "add", "rate_limited"): 1}


@loop_over(
    "tools",
    [
        {},
        {"add": ToolPolicy()},
        {"add": ToolPolicy(max_retries=5)},
        {"add": ToolPolicy(idempotent=True)},
        {"spare": SAFE_TOOL},
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
    async with fronts({"add": SAFE_TOOL}) as front:
        asked = await call(front)
        fail(front, await seen(front, 1), retryable=False)
        assert (await asked.error()).code == 3000
        assert len(calls(front)) == 1


async def test_the_operators_number_of_retries_is_the_most_and_the_last_error_is_told() -> None:
    async with fronts({"add": SAFE_TOOL}) as front:
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
    async with fronts({"spare": SAFE_TOOL}) as front:
        asked = await call(front, "a__read")
        fail(front, await seen(front, 1))
        assert (await asked.error()).code == 3000


async def test_a_link_that_broke_is_opened_anew_for_the_next_attempt() -> None:
    async with fronts({"add": SAFE_TOOL}) as front:
        asked = await call(front)
        await seen(front, 1)
        front.scripts["a"].last.dies()
        do(front, await seen(front, 2))
        assert "content" in await asked.result()
        assert figure(front, "comity_retries_total") == {("a", "add", "upstream_failed"): 1}


async def test_what_was_never_sent_may_be_sent_again_whatever_it_does() -> None:
    async with fronts({"add": ToolPolicy(max_retries=2)}) as front:
        client = await front.client()
        first = front.ask(client, protocol.CALL_TOOL, {"name": ADD})
        do(front, await seen(front, 1))
        await first.result()
        front.scripts["a"].last.breaks = Unavailable("the pipe is full", UPSTREAM_DOWN)
        asked = front.ask(client, protocol.CALL_TOOL, {"name": ADD})
        await settled()
        front.scripts["a"].last.breaks = None
        do(front, await seen(front, 2))
        assert "content" in await asked.result()


async def test_a_call_that_is_withdrawn_in_a_pause_is_not_made_again() -> None:
    async with fronts({"add": SAFE_TOOL}) as front:
        asked = await call(front)
        fail(front, await seen(front, 1), retry_after_ms=60)
        (await asked.asking).withdraw(None)
        await asyncio.sleep(0.12)
        await settled()
        assert len(calls(front)) == 1
        assert asked.outbox.take() == []


async def test_there_is_no_attempt_for_which_the_deadline_leaves_no_time() -> None:
    async with fronts({"add": SAFE_TOOL}) as front:
        asked = await call(front)
        first = await seen(front, 1)
        front.clock.passes(59)
        fail(front, first, retry_after_ms=2000)
        assert (await asked.error()).code == 3000
        assert len(calls(front)) == 1


async def test_a_deadline_that_passes_in_a_pause_says_that_the_tool_may_have_run() -> None:
    async with fronts({"add": SAFE_TOOL}) as front:
        asked = await call(front)
        fail(front, await seen(front, 1), retry_after_ms=20_000)
        front.clock.passes(61)
        front.underway.check(15)
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
    async with fronts({"add": SAFE_TOOL}) as front:
        front.call_gate.retries.retry_listeners.append(
            lambda call, attempt, why: heard.append((attempt, why))
        )
        asked = await call(front)
        fail(front, await seen(front, 1))
        fail(front, await seen(front, 2), 5001)
        do(front, await seen(front, 3))
        await asked.result()
    assert heard == [(1, "rate_limited"), (2, "upstream_slow")]


SPARE = ToolPolicy(idempotent=True, fallback_tool="spare")


@both_eras
@loop_over(("fallback", "server", "name"), [("spare", "a", "spare"), (OTHER, "b", "add")])
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
    async with fronts({"add": SAFE_TOOL}) as front:
        asked = await call(front)
        for number in (1, 2, 3):
            fail(front, await seen(front, number), fallback_tool="spare")
        assert (await asked.error()).code == 3000
        assert {params_of(frame)["name"] for frame in calls(front)} == {"add"}


async def test_another_tool_that_may_not_be_called_changes_nothing_of_the_error() -> None:
    async with fronts({"add": SPARE}) as front:
        find = front.call_gate.find

        def refuse(call: object, kind: object, key: str | None) -> object:
            if key == "a__spare":
                raise MalformedMessage("not for you", ACCESS_DENIED)
            return find(call, kind, key)  # type: ignore[arg-type]

        front.call_gate.find = refuse  # type: ignore[method-assign,assignment]
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
        front.call_gate.retries = RetryService(policies(**tools).get, random_value=lambda: 0.0)
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
        front.call_gate.retries = RetryService(policies(**tools).get, random_value=lambda: 0.0)
        asked = await call(front, "add")
        fail(front, await seen(front, 1, "srv"), name="srv")
        answer = await asked.answer()
        assert refusal_in(answer) is not None


async def test_an_answer_is_not_looked_at_again() -> None:
    async with fronts({"add": SAFE_TOOL}) as front:
        asked = await call(front)
        first = await seen(front, 1)
        front.scripts["a"].last.answers(first, {"content": [], "isError": True})
        assert result_of(await asked.answer())["isError"] is True
        assert len(calls(front)) == 1
