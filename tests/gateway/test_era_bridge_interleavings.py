"""Whatever happens amid calls across the eras, in any order, nothing raises or is left behind."""

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from comity.errors import URL_ELICITATION_REQUIRED
from comity.mcp import jsonrpc, protocol
from comity.mcp.jsonrpc import UNSET, Frame
from comity.sessions.sessions import Session
from tests.support.bridged import (
    ACCEPT,
    DONE,
    EVERYTHING,
    FORM,
    Bridged,
    bridged,
    handshake_server,
    modern_server,
    wants,
)
from tests.support.carriers import Params, result_of, settled, until
from tests.support.cases import loop_over
from tests.support.desks import Asked

SOME = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
PAGE = {"elicitationId": "e", "message": "m", "url": "https://example.test/"}

type Step = Callable[[], Awaitable[None]]


class ModernPlay:
    """A modern client and its handshake server, each doing what it likes."""

    def __init__(self, house: Bridged) -> None:
        self.house = house
        self.fronts: list[Asked] = []
        self.questions = 0
        self.withdrawn: set[str] = set()
        self.steps: dict[str, Step] = {
            "asks": self.asks,
            "answers": self.answers,
            "demands": self.demands,
            "takes back": self.takes_back,
            "stream ends": self.stream_ends,
            "retries": self.retries,
            "retries in vain": self.retries_in_vain,
            "withdraws": self.withdraws,
            "time passes": self.time_passes,
        }

    async def begin(self) -> None:
        self.fronts.append(await self.house.called(meta={"progressToken": 1}))

    async def asks(self) -> None:
        self.questions += 1
        self.house.asks(f"q-{self.questions}")

    async def answers(self) -> None:
        self.house.finishes()

    async def demands(self) -> None:
        assert isinstance(self.house.asked.id, int)
        data = {"elicitations": [PAGE]}
        told = jsonrpc.make_error(self.house.asked.id, URL_ELICITATION_REQUIRED, "first", data)
        self.house.carrier.says(told, self.house.asked)

    async def takes_back(self) -> None:
        name = f"q-{self.questions}"
        self.withdrawn.add(name)
        taken = jsonrpc.make_notification(protocol.CANCELLED, {"requestId": name})
        self.house.carrier.says(taken, self.house.asked)

    async def stream_ends(self) -> None:
        assert isinstance(self.house.asked.id, int)
        self.house.carrier.receiver.on_stream_ended(self.house.asked.id, None)

    async def retries(self) -> None:
        await self._retry(dict.fromkeys(self._asked_for(), ACCEPT))

    async def retries_in_vain(self) -> None:
        await self._retry({})

    async def withdraws(self) -> None:
        (await self.fronts[-1].asking).withdraw(None)

    async def time_passes(self) -> None:
        self.house.front.clock.passes(301)
        self.house.front.underway.check(0)
        self.house.front.parking.check(0)

    def _asked_for(self) -> list[str]:
        return list(msgspec.convert(_last(self.fronts[-1]).get("inputRequests", {}), Params))

    async def _retry(self, responses: dict[str, object]) -> None:
        state = _last(self.fronts[-1]).get("requestState")
        if state is not None:
            self.fronts.append(self.house.retry(state, responses))
            await settled(5)

    async def end(self) -> None:
        for _ in range(3):
            await self.time_passes()
        await settled()
        for number in range(1, self.questions + 1):
            heard = self.house.heard_by_server(f"q-{number}")
            assert len(heard) <= 1
            assert len(heard) == 1 or f"q-{number}" in self.withdrawn
        assert all(front.outbox.is_final for front in self.fronts)


def _last(front: Asked) -> dict[str, object]:
    frames = [jsonrpc.decode_frame(data) for data in front.outbox.frames]
    finals = [frame for frame in frames if frame.method is UNSET]
    assert len(finals) <= 1
    return result_of(finals[0]) if finals and finals[0].result is not UNSET else {}


_MODERN = ["asks", "answers", "demands", "takes back", "stream ends", "retries", "retries in vain"]


@SOME
@given(st.lists(st.sampled_from([*_MODERN, "withdraws", "time passes"]), max_size=14))
def test_whatever_happens_to_a_parked_call_it_ends_and_leaves_nothing(steps: list[str]) -> None:
    async def play() -> None:
        async with bridged(handshake_server()) as house:
            acting = ModernPlay(house)
            await acting.begin()
            for step in steps:
                await acting.steps[step]()
            await acting.end()

    asyncio.run(play())


class HandshakePlay:
    """A handshake client and its modern server."""

    def __init__(self, house: Bridged, session: Session) -> None:
        self.house = house
        self.session = session
        self.asked: list[Frame] = []
        self.front: Asked
        self.steps: dict[str, Step] = {
            "wants one": lambda: self.wants("a"),
            "wants two": lambda: self.wants("a", "b"),
            "answers": self.answers,
            "stream ends": self.stream_ends,
            "client answers": self.client_answers,
            "client refuses": self.client_refuses,
            "client withdraws": self.client_withdraws,
            "time passes": self.time_passes,
        }

    async def begin(self) -> None:
        self.front = self.house.front.ask(self.session, protocol.CALL_TOOL, {"name": "t"})
        await until(lambda: self.house.calls)

    async def wants(self, *keys: str) -> None:
        asked = {key: {"method": protocol.ELICIT, "params": FORM} for key in keys}
        self.house.finishes(wants(asked, "s"))
        self._read()

    async def answers(self) -> None:
        self.house.finishes()

    async def stream_ends(self) -> None:
        assert isinstance(self.house.asked.id, int)
        self.house.carrier.receiver.on_stream_ended(self.house.asked.id, None)

    async def client_answers(self) -> None:
        if self.asked and isinstance(self.asked[-1].id, int):
            self.session.handle_message(jsonrpc.make_result(self.asked.pop().id, ACCEPT))  # type: ignore[arg-type]

    async def client_refuses(self) -> None:
        if self.asked and isinstance(self.asked[0].id, int):
            refusal = jsonrpc.make_error(self.asked.pop(0).id, URL_ELICITATION_REQUIRED, "no")  # type: ignore[arg-type]
            self.session.handle_message(refusal)

    async def client_withdraws(self) -> None:
        call = await self.front.asking
        self.session.handle_message(
            jsonrpc.make_notification(protocol.CANCELLED, {"requestId": call.client_request_id})
        )

    async def time_passes(self) -> None:
        self.house.front.clock.passes(301)
        self.house.front.underway.check(0)
        self.house.front.parking.check(0)

    def _read(self) -> None:
        frames = [jsonrpc.decode_frame(data) for data in self.front.outbox.frames]
        known = {frame.id for frame in self.asked}
        self.asked += [
            frame for frame in frames if frame.method == protocol.ELICIT and frame.id not in known
        ]

    async def end(self) -> None:
        for _ in range(3):
            await self.time_passes()
        await settled()
        assert self.front.outbox.is_final
        finals = [data for data in self.front.outbox.frames if b'"method"' not in data]
        assert len(finals) <= 1


_HANDSHAKE = ["wants one", "wants two", "answers", "stream ends", "client answers"]


@SOME
@given(
    st.lists(
        st.sampled_from([*_HANDSHAKE, "client refuses", "client withdraws", "time passes"]),
        max_size=14,
    )
)
def test_whatever_happens_to_a_repeated_call_it_ends_and_leaves_nothing(steps: list[str]) -> None:
    async def play() -> None:
        async with bridged(modern_server()) as house:
            acting = HandshakePlay(house, await house.front.client(**EVERYTHING))
            await acting.begin()
            for step in steps:
                await acting.steps[step]()
            await acting.end()

    asyncio.run(play())


@loop_over("count", [200])
async def test_many_calls_that_nobody_comes_back_for_leave_nothing(count: int) -> None:
    async with bridged(handshake_server()) as house:
        for number in range(count):
            asked = await house.called()
            house.asks(f"q-{number}")
            await asked.answer()
            house.front.clock.passes(601)
            house.front.parking.check(0)
            assert len(house.front.parking) == 0
            house.finishes(DONE)
        assert len(house.script.open) == 2
