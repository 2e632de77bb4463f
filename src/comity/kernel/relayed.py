"""Calls to a server that another node runs: sent there in the modern era, and answered from there.

Rule 1: where a call comes in, it is judged and written down; the node that runs the server trusts
        what other nodes send it on the bus, and nobody else.
Rule 2: a call is sent once. Of one whose node died nobody knows whether it was done, and the rules
        of retries decide what follows.
Rule 3: a client that takes its call back takes it back at the server.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Final

from comity.kernel.call import Call
from comity.kernel.carried import Incoming
from comity.kernel.carrying import Carrying, Reply
from comity.kernel.forwarding import Desk
from comity.kernel.leasing import SOON, Place, nowhere
from comity.kernel.links import Link
from comity.kernel.outbox import Outbox
from comity.kernel.question import Client
from comity.kernel.tallies import ServerTallies
from comity.kernel.tracing import named_in
from comity.kernel.underway import Underway
from comity.ports import Carrier, Headers, Receiver
from comity.rules.refusals import Refusal
from comity.wire import carried, jsonrpc
from comity.wire.carried import RelayHead
from comity.wire.errors import SERVER_NOT_READY, Unavailable
from comity.wire.jsonrpc import Frame, Limits
from comity.wire.mcp import Era, Stream
from comity.wire.parties import NOBODY, Actor, PartyKind

log = logging.getLogger(__name__)

WHAT: Final = "mcp"
_OPENS: Final = b"s"
_SAYS: Final = b"m"
_PARK_SECONDS: Final = 5.0


class Relay:
    """The way to one server through the node that runs it."""

    costs_a_process = False

    def __init__(self, place: Place, carrying: Carrying) -> None:
        self.place = place
        self.carrying = carrying
        self.links: set[Relayed] = set()
        # Why it did not answer when it was last asked.
        self.why = ""

    def carrier(self, era: Era) -> Carrier:
        return Relayed(self, era)

    def end(self) -> None:
        """It is not there any more."""
        for each in list(self.links):
            each.end(f"server {self.place.server!r} has moved to another node")


class Relayed:
    """One link to a server through another node: a stream for each question."""

    tells_streams_apart = True
    ended_well = False

    def __init__(self, relay: Relay, era: Era) -> None:
        self._relay = relay
        self._place = relay.place
        self._carrying = relay.carrying
        self._era = era
        self._node = ""
        self._receiver: Receiver | None = None
        self._asked: dict[Stream, asyncio.Task[None]] = {}
        self._paused: dict[Stream, asyncio.Event] = {}

    async def open(self, receiver: Receiver) -> None:
        if self._era is Era.HANDSHAKE:
            # Nodes speak the modern era only; what went wrong there is the reason.
            raise Unavailable(self._relay.why or "between nodes only the modern era is spoken")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PARK_SECONDS):
                await self._place.is_known.wait()
        if self._place.elsewhere is None:
            missing = nowhere(self._place.server)
            self._relay.why = str(missing)
            raise missing
        self._node, self._receiver = self._place.elsewhere, receiver
        self._relay.links.add(self)

    def send(self, frame: Frame, stream: Stream, headers: Headers = ()) -> None:
        """Only questions are asked in this era; whoever closes a stream takes one back."""
        if not jsonrpc.is_request(frame):
            return
        if self._receiver is None or self._place.elsewhere != self._node:
            raise nowhere(self._place.server)
        self._carrying.require(self._node)
        task = asyncio.ensure_future(self._ask(frame, stream, headers))
        self._asked[stream] = task
        task.add_done_callback(lambda _: self._forget(stream, task))

    def speaks(self, version: str) -> None:
        """There is one version between nodes."""

    def listen(self) -> None:
        """What nobody asked for comes on streams that were."""

    def pause(self, stream: Stream) -> None:
        self._paused.setdefault(stream, asyncio.Event())

    def resume(self, stream: Stream) -> None:
        paused = self._paused.pop(stream, None)
        if paused is not None:
            paused.set()

    def abandon(self, stream: Stream) -> None:
        task = self._asked.get(stream)
        if task is not None:
            task.cancel()

    async def close(self) -> None:
        self._relay.links.discard(self)
        asked = list(self._asked.values())
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)

    def hints(self) -> Sequence[str]:
        return ()

    def end(self, because: str) -> None:
        self._relay.links.discard(self)
        if self._receiver is not None:
            self._receiver.closed(because)
        for task in list(self._asked.values()):
            task.cancel()

    async def _ask(self, frame: Frame, stream: Stream, headers: Headers) -> None:
        receiver = self._receiver
        assert receiver is not None
        answers: Incoming | None = None
        try:
            actor = _asker(receiver, stream)
            head = RelayHead(self._place.server, headers, actor.party, actor.kind)
            answers = await self._carrying.open(
                self._node, WHAT, carried.encode(head), jsonrpc.encode(frame)
            )
            async for said in answers:
                self._take(said, receiver, stream)
                if stream in self._paused:
                    await self._paused[stream].wait()
            receiver.stream_ended(stream, None)
        except Unavailable as error:
            self._relay.why = str(error)
            receiver.stream_ended(stream, error)
        finally:
            if answers is not None:
                answers.close()

    def _take(self, said: bytes, receiver: Receiver, stream: Stream) -> None:
        if said[:1] == _OPENS:
            receiver.stream_opened(stream)
        elif said[:1] == _SAYS and said[1:4].isdigit():
            receiver.heard(said[4:], stream, int(said[1:4]))
        else:
            log.warning("server %r: another node says something else", self._place.server)

    def _forget(self, stream: Stream, task: asyncio.Task[None]) -> None:
        self.resume(stream)
        if self._asked.get(stream) is task:
            del self._asked[stream]
        if not task.cancelled() and (bug := task.exception()) is not None:
            log.error("a call to another node ended in a bug", exc_info=bug)
            if self._receiver is not None:
                self._receiver.stream_ended(stream, Unavailable("the gateway failed; see its log"))


def _asker(receiver: Receiver, stream: Stream) -> Actor:
    """Who asks, so that what waits for an answer at the other node is found by nobody else."""
    errand = receiver.conversation.amid(stream) if isinstance(receiver, Link) else None
    return errand.outbox.actor if isinstance(errand, Call) else NOBODY


class CarriedCall(Call):
    """A call of another node's: why it was not done is told there, in the client's own words."""

    refused: Refusal | None = None
    is_remote = True

    def turn_down(self, refusal: Refusal) -> None:
        self.refused = refusal
        self._settle(refusal.fault.error_type, None)
        self.outbox.end()


class CarriedUnderway(Underway):
    """The calls of other nodes: counted, written down and ended in time where they came in."""

    def __init__(self, now: Callable[[], float]) -> None:
        super().__init__(now, 0.0, 0.0)

    def begin(
        self,
        frame: Frame,
        outbox: Outbox,
        client: Client | None,
        counted: ServerTallies | None = None,
    ) -> Call:
        call = CarriedCall(frame, outbox, client, self.now())
        call.underway = self
        self._calls.add(call)
        return call

    def end(self, call: Call, outcome: str, answer: Frame | None) -> None:
        self._calls.discard(call)


class AtOwner:
    """Answers the calls of other nodes at the servers that run here."""

    def __init__(self, desk_of: Callable[[str], Desk | None], limits: Limits) -> None:
        self._desk_of = desk_of
        self._limits = limits

    async def answer(self, head: bytes, body: bytes, reply: Reply) -> None:
        asked = carried.relay_head(head)
        desk = self._desk_of(asked.server)
        if desk is None:
            because = f"server {asked.server!r:.80} does not run at the node that was asked"
            raise Unavailable(because, SERVER_NOT_READY, SOON)
        frame = jsonrpc.decode(body, self._limits)
        outbox = Outbox()
        outbox.actor = Actor(asked.party, _kind(asked.kind))
        outbox.trace = named_in(dict(asked.headers))
        call = await desk.ask_modern(frame, outbox, asked.headers)
        try:
            await _pass_on(outbox, reply)
        finally:
            if not outbox.final:
                call.withdraw(None)
        if isinstance(call, CarriedCall) and call.refused is not None:
            refusal = call.refused
            raise Unavailable(refusal.because, refusal.fault, refusal.retry_after)


async def _pass_on(outbox: Outbox, reply: Reply) -> None:
    is_told = False
    while True:
        if outbox.streaming and not is_told:
            is_told = True
            await reply.send(_OPENS)
        taken, is_final = outbox.take(), outbox.final
        for place, said in enumerate(taken):
            status = outbox.status if is_final and place == len(taken) - 1 else 200
            await reply.send(b"%s%03d%s" % (_SAYS, status, said))
        if is_final and not outbox.frames:
            return
        outbox.nudged = outbox.suspended = False
        if not outbox.frames and not outbox.final:
            await outbox.wait()


def _kind(named: str) -> PartyKind:
    try:
        return PartyKind(named)
    except ValueError:
        return PartyKind.AGENT
