"""A live link to a tool server: one conversation over one carrier.

What belongs to a call goes to that call. What belongs to none goes to the link's audience, which
knows who shares the link; nothing is guessed.
"""

import asyncio
import contextlib
import logging
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Final, Protocol

from msgspec import Raw

from comity.kernel.call import Call, Errand, OwnCall, Question
from comity.ports import Carrier, Headers
from comity.rules.conversation import (
    Answer,
    Conversation,
    Heard,
    Notice,
    Stray,
    Withdrawal,
)
from comity.rules.conversation import Question as Asked
from comity.wire import jsonrpc
from comity.wire.errors import EXHAUSTED, MalformedMessage, Unavailable
from comity.wire.jsonrpc import UNSET, Frame, Limits
from comity.wire.mcp import HANDSHAKE_VERSIONS, INITIALIZED, PING, SET_LEVEL, UNKNOWN, Stream

log = logging.getLogger(__name__)

LEVEL_SECONDS: Final = 5.0
"""How long anybody waits for a server to take a log level: no log is worth more."""

_NOTHING: Final = Raw(b"{}")
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

    __slots__ = ("_audience", "_closed", "_limits", "carrier", "conversation", "hello", "server")

    def __init__(self, server: str, carrier: Carrier, audience: Audience, limits: Limits) -> None:
        self.server = server
        self.carrier = carrier
        self.conversation: Conversation[Errand] = Conversation()
        self.hello: dict[str, Raw] | None = None
        self._audience = audience
        self._limits = limits
        self._closed = False

    @property
    def is_open(self) -> bool:
        return not self._closed

    @property
    def callers(self) -> list[Call]:
        """The clients' calls that wait here; the gateway's own do not count."""
        waiting = self.conversation.waiting
        return [
            call for call in waiting if isinstance(call, Call) and not isinstance(call, OwnCall)
        ]

    async def open(self) -> None:
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
                raise Unavailable(f"server {self.server!r} is silent") from None
            raise

    def declares(self, capability: str) -> bool:
        """Whether the server said in its handshake that it has this. (MCP §4.1)"""
        try:
            return capability in jsonrpc.members((self.hello or {}).get("capabilities", _NOTHING))
        except MalformedMessage:
            return False

    def ask(self, call: Call, frame: Frame, headers: Headers = ()) -> None:
        """Send a client's request; its answer finds the call by itself. Raises Unavailable."""
        if self._closed:
            raise Unavailable(f"the link to server {self.server!r} is closed")
        if call.outbox.final:
            # Withdrawn, or past its deadline, while its way was being found.
            return
        carrier = self.carrier
        outgoing = self.conversation.ask(frame, call, mint_token=not carrier.tells_streams_apart)
        call.minted = minted = outgoing.id  # type: ignore[assignment]  # minted ids are integers
        call.link = self
        try:
            carrier.send(outgoing, minted, headers)  # type: ignore[arg-type]
        except Unavailable:
            self.conversation.drop(call.minted)
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
        told = self.conversation.withdraw(minted, reason)
        if told is not None:
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
            self.ask(call, frame, headers)
            return await call.done
        except MalformedMessage as error:
            raise Unavailable(str(error), error.fault) from None
        except asyncio.CancelledError:
            call.withdraw(None)
            raise

    async def greet(self, hello: object) -> dict[str, Raw]:
        """The handshake: `initialize`, and only then `initialized`. (MCP §4.1)"""
        answer = await self.request("initialize", hello)
        error = jsonrpc.error_of(answer)
        if error is not None:
            raise Unavailable(f"server {self.server!r} refused the handshake: {error.message}")
        assert answer.result is not UNSET
        self.welcome(answer.result)
        assert self.hello is not None
        version = jsonrpc.text(self.hello.get("protocolVersion"))
        if version not in HANDSHAKE_VERSIONS:
            raise Unavailable(f"server {self.server!r} speaks another MCP: {version!r:.40}")
        self.tell(jsonrpc.notification(INITIALIZED))
        return self.hello

    async def set_level(self, level: str | None) -> None:
        """Have the server log from this level on, where it logs at all. (MCP §4.1)"""
        if level is None or not self.declares("logging"):
            return
        with contextlib.suppress(Unavailable, TimeoutError):
            async with asyncio.timeout(LEVEL_SECONDS):
                await self.request(SET_LEVEL, {"level": level})

    def welcome(self, result: Raw) -> None:
        """Note what the server said of itself in its answer to `initialize`."""
        self.hello = jsonrpc.members(result)
        version = jsonrpc.text(self.hello.get("protocolVersion"))
        if version is not None and _VERSION.fullmatch(version):
            self.carrier.speaks(version)
        # What the server pushes from now on waits here, even if the client listens later.
        self.carrier.listen()

    def heard(self, data: bytes, stream: Stream, status: int) -> None:
        """One message from the server, which is a stranger: whatever it says, nothing is raised."""
        try:
            frame = jsonrpc.decode(data, self._limits)
            found = self.conversation.hear(frame, stream)
            if type(found) is Answer:
                found.errand.answered(found.frame, status)
            else:
                self._hear_other(found)
        except MalformedMessage as error:
            self._hear_broken(data, stream, error)

    def _hear_other(self, found: Heard[Errand]) -> None:
        if type(found) is Notice:
            if found.amid is not None:
                found.amid.told(found.frame)
            else:
                self._audience.told(self, found.frame)
        elif type(found) is Asked:
            self._hear_question(found.frame, found.amid)
        elif type(found) is Withdrawal:
            found.errand.withdraw(found.reason)
        elif type(found) is Stray:
            log.info("server %r: %s", self.server, found.because)

    def _hear_broken(self, data: bytes, stream: Stream, error: MalformedMessage) -> None:
        """Fail the call that the broken message was to answer, and no other."""
        log.warning("server %r: %s", self.server, error)
        named = jsonrpc.answers(data) if stream is UNKNOWN else stream
        if isinstance(named, int):
            self._fail(named, Unavailable(f"the server sent a broken message: {error}"))

    def _hear_question(self, frame: Frame, amid: Errand | None) -> None:
        question = Question(frame, self, self.tell)
        try:
            self.conversation.take(question.asker_id, question)
        except MalformedMessage as error:
            log.warning("server %r: %s", self.server, error)
            if error.fault is EXHAUSTED:
                self.tell(jsonrpc.failure(question.asker_id, error.fault, str(error)))
            return
        if question.method == PING:
            question.answered(jsonrpc.result(question.asker_id, {}))
        elif amid is not None:
            amid.asked(question, frame)
        else:
            self._audience.asked(self, question, frame)

    def stream_opened(self, stream: Stream) -> None:
        errand = self.conversation.amid(stream)
        if isinstance(errand, Call):
            errand.outbox.throttle = _Throttle(self, errand.minted)
            errand.outbox.stream()

    def stream_suspended(self, stream: Stream) -> None:
        errand = self.conversation.amid(stream)
        if isinstance(errand, Call):
            errand.outbox.suspend()

    def awaits(self, stream: Stream) -> bool:
        return self.conversation.amid(stream) is not None

    def renewed(self) -> None:
        self._audience.renewed(self)

    def stream_ended(self, stream: Stream, because: Unavailable | None) -> None:
        missing = Unavailable("the server ended its stream without an answer")
        self._fail(stream, because or missing)

    def closed(self, because: str) -> None:
        if self._closed:
            return
        self._closed = True
        self._orphan(because)
        self._audience.gone(self, because)

    async def close(self) -> None:
        """End the link from our side; whoever still waits is told."""
        if not self._closed:
            self._closed = True
            self._orphan("the link was closed")
        await self.carrier.close()

    def _fail(self, stream: Stream, error: Unavailable) -> None:
        errand = self.conversation.drop(stream)
        if errand is not None:
            errand.failed(error)

    def _orphan(self, because: str) -> None:
        asked, taken = self.conversation.close()
        for errand in asked:
            errand.failed(Unavailable(f"server {self.server!r} went away: {because}"))
        for errand in taken:
            errand.withdraw(None)


class _Throttle:
    """Stops and restarts the reading of one call's stream."""

    __slots__ = ("_link", "_minted")

    def __init__(self, link: Link, minted: int) -> None:
        self._link = link
        self._minted = minted

    def __call__(self, paused: bool) -> None:
        self._link.throttle(self._minted, paused)
