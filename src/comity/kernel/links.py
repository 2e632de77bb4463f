"""A live link to a tool server: one conversation over one carrier.

What belongs to a call goes to that call. What belongs to none goes to the link's audience, which
knows who shares the link; nothing is guessed.
"""

import asyncio
import contextlib
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from functools import partial
from typing import Final, Protocol

from msgspec import Raw

from comity.kernel.call import Call
from comity.kernel.own_call import OwnCall
from comity.kernel.pulse import Live, Pulse
from comity.kernel.question import Errand, Question
from comity.ports import Carrier, Headers
from comity.rules.conversation import Answer, Conversation, Heard, Notice, Stray, Withdrawal
from comity.rules.conversation import Question as Asked
from comity.rules.negotiation import TO_SERVERS, Terms, agree
from comity.wire import jsonrpc, mcp
from comity.wire.callbacks import REQUEST as CALL_BACK
from comity.wire.errors import (
    EXHAUSTED,
    METHOD_NOT_FOUND,
    UPSTREAM_DOWN,
    UPSTREAM_SLOW,
    MalformedMessage,
    Unavailable,
)
from comity.wire.features import declared_in
from comity.wire.jsonrpc import UNSET, Frame, Limits
from comity.wire.mcp import LIST_CHANGES, UNKNOWN, Stream
from comity.wire.negotiation import stated
from comity.wire.security import NOT_YOURS, PERMISSION_PREFIX
from comity.wire.streaming import TOLD as STREAMED
from comity.wire.traces import with_trace_id

log = logging.getLogger(__name__)

LEVEL_SECONDS: Final = 5.0
"""How long anybody waits for a server to take a log level: no log is worth more."""

_VERSION: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
"""What a version may look like: a carrier repeats it in every message, perhaps as a header."""


class Audience(Protocol):
    """Who hears what a server says outside of any call."""

    def told(self, link: "Link", frame: Frame) -> None: ...
    def asked(self, link: "Link", question: Question, frame: Frame) -> None: ...
    def renewed(self, link: "Link") -> None: ...
    def gone(self, link: "Link", because: str) -> None: ...


class Link:
    """One conversation with one server."""

    __slots__ = (
        *("_audience", "_closed", "_limits", "apart", "carrier", "conversation"),
        *(
            "hello",
            "is_for_plain",
            "level",
            "live",
            "mgp",
            "on_change",
            "on_hello",
            "pulse",
            "server",
        ),
    )

    def __init__(
        self,
        server: str,
        carrier: Carrier,
        audience: Audience,
        limits: Limits,
        pulse: Pulse | None = None,
    ) -> None:
        self.server = server
        self.carrier = carrier
        self.conversation: Conversation[Errand] = Conversation()
        self.hello: dict[str, Raw] | None = None
        self.level: str | None = None
        self.mgp: Terms | None = None
        # Whether MGP is spoken here only so that a plain client's calls can stream.
        self.is_for_plain = False
        # Set where the gateway itself offers MCPL, until the server turns out to be plain. (§3)
        self.live: Live | None = None
        # Who sends a call of a tool that asks to another process.
        self.apart: Callable[[Link, Call, Frame], bool] | None = None
        self.on_change: Callable[[str], None] | None = None
        self.on_hello: Callable[[Link], Awaitable[None]] | None = None
        self.pulse = pulse or Pulse()
        self._audience = audience
        self._limits = limits
        self._closed = False

    @property
    def is_open(self) -> bool:
        return not self._closed

    @property
    def callers(self) -> list[Call]:
        """The clients' calls that wait here; the gateway's own do not count."""
        calls = [call for call in self.conversation.waiting if isinstance(call, Call)]
        return [call for call in calls if not isinstance(call, OwnCall)]

    async def open(self) -> None:
        self.pulse.links.add(self)
        await self.carrier.open(self)

    async def begin(
        self, within: timedelta, hello: object | None, level: str | None = None
    ) -> None:
        """Open the link, and greet unless the client does; in bounded time or not at all."""
        try:
            async with asyncio.timeout(within.total_seconds()):
                await self.open()
                if hello is not None:
                    await self.greet(hello)
                    await self.set_level(level)
        except BaseException as error:
            await self.close()
            if isinstance(error, TimeoutError):
                raise Unavailable(f"server {self.server!r} is silent", UPSTREAM_SLOW) from None
            raise

    def declares(self, capability: str) -> bool:
        """Whether the server said in its handshake that it has this. (MCP §4.1)"""
        try:
            return capability in jsonrpc.members((self.hello or {}).get("capabilities", Raw(b"{}")))
        except MalformedMessage:
            return False

    def changes(self) -> list[Frame]:
        """What tells a client that the server began anew: each list it has may be another."""
        declared = [change for name, change in mcp.CHANGE_OF.items() if self.declares(name)]
        return [jsonrpc.notification(change) for change in declared]

    def ask(self, call: Call, frame: Frame, headers: Headers = ()) -> None:
        """Send a client's request; its answer finds the call by itself. Raises Unavailable."""
        if self.pulse.bar is not None:
            self.pulse.bar()
        if self.apart is not None and self.apart(self, call, frame):
            return
        live = self.live if frame.method == mcp.CALL_TOOL else None
        if live is None or not live.carries(self, call, frame, headers):
            self.send(call, frame, headers)

    def send(self, call: Call, frame: Frame, headers: Headers) -> None:
        """Send any request, as it is. Raises Unavailable."""
        if self._closed:
            raise Unavailable(f"the link to server {self.server!r} is closed", UPSTREAM_DOWN)
        if call.outbox.final or call.is_concluded:
            # Withdrawn, or past its deadline, while its way was being found.
            return
        carrier, streaming = self.carrier, self.pulse.streaming
        if streaming is not None and frame.method == mcp.CALL_TOOL:
            frame = streaming.attend(self, call, frame)
        outgoing = self.conversation.ask(frame, call, mint_token=not carrier.tells_streams_apart)
        call.minted = minted = outgoing.id  # type: ignore[assignment]  # minted ids are integers
        call.link = self
        if (
            self.mgp is not None
            and not self.is_for_plain
            and (call.is_for_all_servers or call.speaks_mgp_with_server())
        ):
            outgoing = with_trace_id(outgoing, call.traced())
        trace = call.outbox.trace
        if trace is not None:
            in_headers = carrier.tells_streams_apart
            outgoing, headers = trace.onward(outgoing, headers, self.server, in_headers)
        try:
            carrier.send(outgoing, minted, headers)  # type: ignore[arg-type]  # an integer
        except Unavailable:
            self.conversation.drop(call.minted)
            # It was never sent, so nobody need doubt whether it was done.
            call.link = None
            raise

    def tell(self, frame: Frame, headers: Headers = ()) -> None:
        """Send something that is not a request; a link that is gone hears nothing."""
        if self._closed:
            return
        try:
            self.carrier.send(frame, UNKNOWN, headers)
        except Unavailable as error:
            log.info("server %r did not take a message: %s", self.server, error)

    def forsake(self, minted: int, reason: Raw | None) -> None:
        """Nobody waits for this answer any more; say so to the server."""
        errand = self.conversation.amid(minted)
        told = self.conversation.withdraw(minted, reason)
        streaming = self.pulse.streaming
        if told is not None:
            if streaming is None or not streaming.stops(self, errand, told):
                self.tell(told)
            self.carrier.abandon(minted)

    def throttle(self, minted: int, paused: bool) -> None:
        (self.carrier.pause if paused else self.carrier.resume)(minted)

    async def request(
        self,
        method: str,
        params: object = UNSET,
        headers: Headers = (),
        on_told: Callable[[Frame], None] | None = None,
    ) -> Frame:
        """A request of the gateway's own; gives the answer's frame. Raises Unavailable.

        What the server tells amid the request is for `on_told`, or for nobody.
        """
        frame = jsonrpc.request("comity", method, params)
        call = OwnCall(frame, on_told)
        try:
            self.send(call, frame, headers)
            return await call.done
        except MalformedMessage as error:
            raise Unavailable(str(error), error.fault) from None
        except asyncio.CancelledError:
            call.withdraw(None)
            raise

    async def greet(self, hello: object) -> dict[str, Raw]:
        """The handshake; only when all is decided, `initialized`. (MCP §4.1, D-07)"""
        answer = await self.request("initialize", hello)
        error = jsonrpc.error_of(answer)
        if error is not None:
            raise Unavailable(f"server {self.server!r} refused the handshake: {error.message}")
        assert answer.result is not UNSET
        here = self.welcome(answer.result)
        said = stated(jsonrpc.members(jsonrpc.to_raw(hello)).get("capabilities"))
        if said is not None:
            self.agree(here, said.extensions)
        version = jsonrpc.text(here.get("protocolVersion"))
        if version not in mcp.HANDSHAKE_VERSIONS:
            raise Unavailable(f"server {self.server!r} speaks another MCP: {version!r:.40}")
        if self.on_hello is not None:
            await self.on_hello(self)
        self.tell(jsonrpc.notification(mcp.INITIALIZED))
        self.initialised()
        return here

    def initialised(self) -> None:
        """The handshake is over: a live server may be told what it may do. (MCPL §5.3)"""
        if self.live is not None:
            self.live.greeted(self, (self.hello or {}).get("capabilities"))

    def agree(self, said: Mapping[str, Raw], offered: frozenset[str] = TO_SERVERS) -> None:
        """Note what was agreed on of MGP, where the gateway itself has offered it. (MGP §2.4)"""
        self.mgp = agree(stated(said.get("capabilities")), TO_SERVERS & offered)

    async def set_level(self, level: str | None) -> None:
        """Have the server log from this level on, where it logs at all. (MCP §4.1)"""
        if level is None or not self.declares("logging"):
            return
        self.level = level
        with contextlib.suppress(Unavailable, TimeoutError):
            async with asyncio.timeout(LEVEL_SECONDS):
                await self.request(mcp.SET_LEVEL, {"level": level})

    def welcome(self, result: Raw) -> dict[str, Raw]:
        """Note what the server said of itself in its answer to `initialize`."""
        self.hello = here = jsonrpc.members(result)
        if self.live is not None and declared_in(here.get("capabilities")) is None:
            self.live = None
        version = jsonrpc.text(here.get("protocolVersion"))
        if version is not None and _VERSION.fullmatch(version):
            self.carrier.speaks(version)
        # What the server pushes from now on waits here, even if the client listens later.
        self.carrier.listen()
        return here

    def heard(self, data: bytes, stream: Stream, status: int) -> bool:
        """One message from the server, which is a stranger: whatever it says, nothing is raised."""
        self.pulse.heard += 1
        try:
            frame = jsonrpc.decode(data, self._limits)
            found = self.conversation.hear(frame, stream)
            if type(found) is Answer:
                live = self.live
                if live is None or not live.answered(self, found.errand, found.frame, status):
                    found.errand.answered(found.frame, status)
                return True
            return self._hear_other(found)
        except MalformedMessage as error:
            return self._hear_broken(data, stream, error)

    def _hear_other(self, found: Heard[Errand]) -> bool:
        """Whether it belongs to a call."""
        if type(found) is Notice:
            return self._hear_notice(found.frame, found.amid)
        if type(found) is Asked:
            self._hear_question(found.frame, found.amid)
            return found.amid is not None
        if type(found) is Withdrawal:
            found.errand.withdraw(found.reason)
        elif type(found) is Stray:
            log.info("server %r: %s", self.server, found.because)
        return False

    def _hear_notice(self, frame: Frame, amid: Errand | None) -> bool:
        if frame.method in STREAMED:
            streaming = self.pulse.streaming
            return streaming is not None and streaming.heard(self.server, frame, amid)
        if frame.method in LIST_CHANGES:
            self._hear_of_change(str(frame.method), amid)
        elif (hear := self.pulse.notices.get(str(frame.method))) is not None:
            hear(self, frame)
        if self.live is not None and self.live.told(self, frame):
            return amid is not None
        questions = self.pulse.questions if frame.method == CALL_BACK else None
        if questions is not None and questions.called_back(self, frame, amid):
            return amid is not None
        if amid is not None:
            amid.told(frame)
            return not isinstance(amid, OwnCall)
        self._audience.told(self, frame)
        return False

    def _hear_broken(self, data: bytes, stream: Stream, error: MalformedMessage) -> bool:
        """Fail the call that the broken message was to answer, and no other."""
        named = jsonrpc.answers(data) if stream is UNKNOWN else stream
        awaited = isinstance(named, int) and self.conversation.amid(named) is not None
        # Garbage that nobody waits for may come in floods.
        log.log(logging.WARNING if awaited else logging.INFO, "server %r: %s", self.server, error)
        if isinstance(named, int):
            self._fail(named, Unavailable(f"the server sent a broken message: {error}"))
        return awaited

    def _hear_of_change(self, method: str, amid: Errand | None) -> None:
        """Some servers tell it on the stream of the call by which it came about."""
        if self.on_change is not None and not isinstance(amid, OwnCall):
            self.on_change(method)

    def _hear_question(self, frame: Frame, amid: Errand | None) -> None:
        question, questions = Question(frame, self, self.tell), self.pulse.questions
        question.instead = None if questions is None else questions.instead
        try:
            self.conversation.take(question.asker_id, question)
        except MalformedMessage as error:
            log.warning("server %r: %s", self.server, error)
            if error.fault is EXHAUSTED:
                self.tell(jsonrpc.failure(question.asker_id, error.fault, str(error)))
            return
        if question.method == mcp.PING:
            question.answered(jsonrpc.result(question.asker_id, {}))
        elif question.method.startswith(PERMISSION_PREFIX):
            log.warning("server %r sent %s: it counts for nothing", self.server, question.method)
            question.answered(jsonrpc.failure(question.asker_id, METHOD_NOT_FOUND, NOT_YOURS))
        elif self.live is not None and self.live.asked(self, question, frame, amid):
            return
        elif amid is not None:
            amid.asked(question, frame)
        else:
            self._audience.asked(self, question, frame)

    def stream_opened(self, stream: Stream) -> None:
        if isinstance(errand := self.conversation.amid(stream), Call):
            errand.outbox.throttle = partial(self.throttle, errand.minted)
            errand.outbox.stream()

    def stream_suspended(self, stream: Stream) -> None:
        if isinstance(errand := self.conversation.amid(stream), Call):
            errand.outbox.suspend()

    def awaits(self, stream: Stream) -> bool:
        return self.conversation.amid(stream) is not None

    def renewed(self) -> None:
        self._audience.renewed(self)

    def stream_ended(self, stream: Stream, because: Unavailable | None) -> None:
        self._fail(stream, because or Unavailable("the server ended its stream with no answer"))

    def faltered(self, because: str, in_a_call: bool) -> None:
        self.pulse.falter(because, in_a_call=in_a_call)

    def closed(self, because: str) -> None:
        if self._closed:
            return
        self._closed = True
        self.pulse.links.discard(self)
        self._orphan(because)
        self._audience.gone(self, because)

    async def close(self) -> None:
        """End the link from our side; whoever still waits is told."""
        if not self._closed:
            self._closed = True
            self._orphan("the link was closed")
        self.pulse.links.discard(self)
        await self.carrier.close()

    def _fail(self, stream: Stream, error: Unavailable) -> None:
        if (errand := self.conversation.drop(stream)) is not None:
            errand.failed(error)

    def _orphan(self, because: str) -> None:
        asked, taken = self.conversation.close()
        for errand in asked:
            errand.failed(Unavailable(f"server {self.server!r} went away: {because}"))
        for errand in taken:
            errand.withdraw(None)
