"""How every Python client goes through the features of a server and says what came of each.

Runs inside the client's own process and environment, so that it imports nothing but Python's own.
A client is asked on stdin (`Orders` in `cells.py`) and answers on stdout, one line for each server.
"""

import asyncio
import json
import sys
import uuid
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol, cast

type Plan = Mapping[str, Any]
type Stepped = Callable[[float], None]

# Nothing here is measured: a feature that has not come after this time does not come.
FEATURE_SECONDS = 20.0
CONNECT_SECONDS = 120.0
CLOSE_SECONDS = 20.0

NAME_GIVEN = {"name": "you"}
POET = "poet-1"
POEM = "An old silent pond."


@dataclass(frozen=True)
class Target:
    """Where a client goes, and what it does there."""

    id: str
    over: str
    url: str
    command: list[str]
    plan: dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Answer:
    text: str
    structured: Any
    is_error: bool


class Peer(Protocol):
    """What a client of any SDK can do here."""

    @property
    def era(self) -> str:
        """What was agreed on: "handshake" or "modern"."""
        ...

    async def tools(self) -> list[str]: ...

    async def resources(self) -> list[str]: ...

    async def call(
        self, tool: str, arguments: dict[str, Any], stepped: Stepped | None = None
    ) -> Answer: ...

    async def call_off(self, call: asyncio.Task[Answer]) -> None: ...

    def hearing(self, of: str) -> AbstractAsyncContextManager[asyncio.Event]:
        """Told while it is open: that the list of `of` ("tools" or "resources") has changed."""
        ...


type Connect = Callable[[Target, str], AbstractAsyncContextManager[Peer]]


async def _list(peer: Peer, plan: Plan) -> str | None:
    listed = await peer.tools()
    if peer.era != plan.get("era", peer.era):
        return f"wrong: the {peer.era} era is spoken"
    return None if plan["tool"] in listed else f"wrong: {plan['tool']} is not among {listed}"


async def _call(peer: Peer, plan: Plan) -> str | None:
    answer = await peer.call(plan["tool"], plan["arguments"])
    said = plan["text"] in answer.text and not answer.is_error
    return None if said else f"wrong: {_shown(answer)}"


async def _structured(peer: Peer, plan: Plan) -> str | None:
    answer = await peer.call(plan["tool"], plan["arguments"])
    return None if answer.structured == plan["expect"] else f"wrong: {_shown(answer)}"


async def _progress(peer: Peer, plan: Plan) -> str | None:
    """Every step in order, and in time if the server waits to be told that they were heard.

    A server that does not wait sends its last steps with its result, and a client may be done with
    a call before it looks at them (TypeScript's are): only its first steps are expected.
    """
    fresh = _fresh()
    steps: list[float] = []
    heard = asyncio.Event()

    def step(progress: float) -> None:
        steps.append(progress)
        if len(steps) == len(plan["expect"]):
            heard.set()

    call = asyncio.create_task(peer.call(plan["tool"], _given(plan, fresh), step))
    try:
        await _first_of(heard.wait(), call)
        if "then" in plan and not call.done():
            await peer.call(plan["then"]["tool"], _given(plan["then"], fresh))
        answer = await call
    finally:
        call.cancel()
        await asyncio.wait([call])
    if answer.is_error:
        return f"wrong: {_shown(answer)}"
    heard_of = steps if "then" in plan else steps[: len(plan["expect"])]
    return None if heard_of == plan["expect"] else f"wrong: heard of the steps {steps}"


async def _cancellation(peer: Peer, plan: Plan) -> str | None:
    witness = plan.get("witness")
    before = await _witnessed(peer, witness)
    begun = asyncio.Event()
    call = asyncio.create_task(
        peer.call(plan["tool"], plan["arguments"], lambda _: begun.set()), name="called off"
    )
    try:
        await _first_of(begun.wait(), call)
        if call.done():
            return f"wrong: it ended by itself: {_shown(call.result())}"
        await peer.call_off(call)
    finally:
        call.cancel()
        await asyncio.wait([call])
    if not call.cancelled() and call.exception() is None:
        return f"wrong: a call that was called off answered {_shown(call.result())}"
    while witness is not None and await _witnessed(peer, witness) == before:
        await asyncio.sleep(0.05)
    still = plan["still"]
    answer = await peer.call(still["tool"], still["arguments"])
    return f"wrong: afterwards {_shown(answer)}" if answer.is_error else None


async def _witnessed(peer: Peer, witness: str | None) -> str:
    return "" if witness is None else (await peer.call(witness, {})).text


async def _list_changed(peer: Peer, plan: Plan) -> str | None:
    fresh = _fresh()
    wanted = plan["appears"].replace("NEW", fresh)
    listed = peer.tools if plan["of"] == "tools" else peer.resources
    if wanted in await listed():
        return f"wrong: {wanted} was there before"
    async with peer.hearing(plan["of"]) as changed:
        answer = await peer.call(plan["tool"], _given(plan, fresh))
        if answer.is_error:
            return f"wrong: {_shown(answer)}"
        # A list may be told of as changed before it has: then it is told of again.
        while True:
            await changed.wait()
            changed.clear()
            if wanted in await listed():
                return None


FEATURES: dict[str, Callable[[Peer, Plan], Awaitable[str | None]]] = {
    "list": _list,
    "call": _call,
    "structured": _structured,
    "progress": _progress,
    "cancellation": _cancellation,
    "elicitation": _call,
    "sampling": _call,
    "list_changed": _list_changed,
}


def drive(connect: Connect) -> None:
    """The whole program of a client."""
    orders = json.loads(sys.stdin.read())
    asyncio.run(_drive(connect, orders))


async def _drive(connect: Connect, orders: dict[str, Any]) -> None:
    turns = asyncio.Semaphore(orders["together"])

    async def visit(target: Target) -> None:
        async with turns:
            outcomes = await _visit(connect, target, orders["mode"])
        print(json.dumps({"id": target.id, "outcomes": outcomes}), flush=True)

    for round_ in orders["rounds"]:
        await asyncio.gather(*(visit(Target(**order)) for order in round_))


async def _visit(connect: Connect, target: Target, mode: str) -> dict[str, str]:
    """Every feature, with a new connection after one that failed.

    Whatever a client fails with is its outcome, and no reason to leave out the next; but who
    cannot even list is not understood at all.
    """
    outcomes: dict[str, str] = {}
    while left := [name for name in FEATURES if name in target.plan and name not in outcomes]:
        try:
            async with asyncio.timeout(CONNECT_SECONDS + len(left) * FEATURE_SECONDS):
                await _go_through(connect(target, mode), left, target.plan, outcomes)
        except Exception as error:
            if left[0] not in outcomes:
                return {**outcomes, **dict.fromkeys(left, f"fail: {_told(error)}")}
        if outcomes["list"] != "pass":
            return dict.fromkeys(left, outcomes["list"])
    return outcomes


async def _go_through(
    connection: AbstractAsyncContextManager[Peer],
    names: list[str],
    plan: Mapping[str, Plan],
    outcomes: dict[str, str],
) -> None:
    async with asyncio.timeout(CONNECT_SECONDS) as connecting, connection as peer:
        connecting.reschedule(None)
        for name in names:
            outcomes[name] = await _try(FEATURES[name], peer, plan[name])
            if outcomes[name] != "pass":
                break
        connecting.reschedule(asyncio.get_running_loop().time() + CLOSE_SECONDS)


async def _try(
    feature: Callable[[Peer, Plan], Awaitable[str | None]], peer: Peer, plan: Plan
) -> str:
    try:
        async with asyncio.timeout(FEATURE_SECONDS):
            why = await feature(peer, plan)
    except Exception as error:
        why = _told(error)
    return "pass" if why is None else f"fail: {why}"


def _fresh() -> str:
    return f"new_{uuid.uuid4().hex[:8]}"


def _given(plan: Plan, fresh: str) -> dict[str, Any]:
    """The arguments of a call, with a name that nobody has used yet wherever one is wanted."""
    return {
        name: value.replace("NEW", fresh) if isinstance(value, str) else value
        for name, value in plan["arguments"].items()
    }


async def _first_of(event: Awaitable[Any], call: asyncio.Task[Answer]) -> None:
    waiting = asyncio.ensure_future(event)
    try:
        await asyncio.wait([waiting, call], return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()


def _told(error: BaseException) -> str:
    """The kind of a failure, which is compared, and then its words, which are read."""
    if isinstance(error, BaseExceptionGroup):
        return _told(cast("BaseExceptionGroup[BaseException]", error).exceptions[0])
    if isinstance(error, TimeoutError):
        return f"silence: {error}"
    told = getattr(error, "error", None)
    code = getattr(told, "code", getattr(error, "code", None))
    kind = type(error).__name__ if code is None else f"error {code}"
    return f"{kind}: {' '.join(str(error).split())}"[:300]


def _shown(answer: Answer) -> str:
    return f"{'error ' if answer.is_error else ''}{answer.text!r} {answer.structured!r}"[:300]
