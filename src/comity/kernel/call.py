"""Calls and questions under way: who asked, who answers, and the stream the answer goes to.

A Call goes from a client to a server, a Question from a server to a client. Both are errands of two
conversations at once: open in the answerer's, taken in the asker's.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from msgspec import Raw

from comity.kernel.outbox import Outbox
from comity.rules.conversation import Conversation
from comity.wire import jsonrpc
from comity.wire.errors import (
    HTTP_STATUS_OF_CODE,
    METHOD_NOT_FOUND,
    UPSTREAM_FAILED,
    UPSTREAM_TIMEOUT,
    Fault,
    MalformedMessage,
    Unavailable,
)
from comity.wire.jsonrpc import Frame, Id
from comity.wire.mcp import CLIENT_CAPABILITY, LISTEN

log = logging.getLogger(__name__)


class Errand(Protocol):
    """Something that waits for an answer from a peer."""

    def answered(self, frame: Frame, status: int) -> None: ...
    def told(self, frame: Frame) -> None: ...
    def asked(self, question: "Question", frame: Frame) -> None: ...
    def failed(self, error: Unavailable | MalformedMessage) -> None: ...
    def withdraw(self, reason: Raw | None) -> None: ...


class Answerer(Protocol):
    """The link that a call goes out on."""

    @property
    def conversation(self) -> Conversation[Errand]: ...
    def tell(self, frame: Frame) -> None: ...
    def forsake(self, minted: int, reason: Raw | None) -> None: ...
    def throttle(self, minted: int, paused: bool) -> None: ...


class Client(Protocol):
    """The client side of a session, as far as a question needs it."""

    @property
    def conversation(self) -> Conversation[Errand]: ...
    def may_be_asked(self, capability: str) -> bool: ...


class Call:
    """One request of a client's, on its way to a server and back."""

    # Defaults stand on the class: one of these is made for every call, and most stay untouched.
    link: Answerer | None = None
    minted = 0
    adapt: Callable[[Frame], Frame] | None = None
    retell: Callable[[Frame], Frame] | None = None
    on_long: Callable[[], None] | None = None
    underway: "Underway | None" = None

    def __init__(self, frame: Frame, outbox: Outbox, client: Client | None, now: float) -> None:
        self.asker_id: Id = frame.id  # type: ignore[assignment]  # the door let only requests in
        self.method: str = frame.method  # type: ignore[assignment]
        self.client = client
        self.outbox = outbox
        self.began = self.touched = now

    def answered(self, frame: Frame, status: int = 200) -> None:
        """The one answer. Whoever adapts it may read only what it needs."""
        if self.adapt is not None and frame.error is jsonrpc.UNSET:
            try:
                frame = self.adapt(frame)
            except MalformedMessage as error:
                self.refuse(UPSTREAM_FAILED, f"the server sent a broken answer: {error}")
                return
        self._settle()
        if frame.error is not jsonrpc.UNSET:
            status = self._status(frame, status)
        self.outbox.finish(jsonrpc.encode(frame), status)

    def told(self, frame: Frame) -> None:
        if self.underway is not None:
            self.touched = self.underway.now()
        if self.retell is not None:
            frame = self.retell(frame)
        if not self.outbox.put(jsonrpc.encode(frame)) and self.outbox.overrun:
            log.warning("a client reads %s too slowly; its stream is ended", self.method)
            self.withdraw(None)

    def asked(self, question: "Question", frame: Frame) -> None:
        if self.client is None:
            question.refuse(METHOD_NOT_FOUND, "this client cannot be asked by a request")
        else:
            retold = frame if self.retell is None else self.retell(frame)
            question.put_to(self.client, retold, self.outbox)

    def failed(self, error: Unavailable | MalformedMessage) -> None:
        self.refuse(error.fault, str(error))

    def refuse(self, fault: Fault, because: str) -> None:
        """Answer with an error of ours."""
        self._settle()
        refusal = jsonrpc.failure(self.asker_id, fault, because)
        self.outbox.finish(jsonrpc.encode(refusal), self._status(refusal, 200))

    def withdraw(self, reason: Raw | None) -> None:
        """The client no longer wants it: tell the server, and end the stream without an answer."""
        self._settle()
        if self.link is not None:
            self.link.forsake(self.minted, reason)
        self.outbox.end()

    def expire(self) -> None:
        """The deadline has passed: tell the server to stop, and the client that it did not."""
        if self.link is not None:
            self.link.forsake(self.minted, jsonrpc.to_raw("deadline exceeded"))
        self.refuse(UPSTREAM_TIMEOUT, "the server did not answer before the call's deadline")

    def _status(self, frame: Frame, status: int) -> int:
        """The HTTP status of an answer: in the modern era an error's code decides it."""
        if self.client is not None or status != 200:
            return status
        error = jsonrpc.error_of(frame)
        return 200 if error is None else HTTP_STATUS_OF_CODE.get(error.code, 200)

    def _settle(self) -> None:
        if self.client is not None:
            self.client.conversation.settle(self.asker_id)
        if self.underway is not None:
            self.underway.remove(self)


class OwnCall(Call):
    """A request of the gateway's own, behind which no client stands."""

    __slots__ = ("done", "on_told")

    def __init__(self, frame: Frame, on_told: Callable[[Frame], None] | None) -> None:
        super().__init__(frame, Outbox(), None, 0)
        self.done: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
        self.on_told = on_told

    def answered(self, frame: Frame, status: int = 200) -> None:
        if not self.done.done():
            self.done.set_result(frame)

    def told(self, frame: Frame) -> None:
        if self.on_told is not None:
            self.on_told(frame)

    def failed(self, error: Unavailable | MalformedMessage) -> None:
        if not self.done.done():
            self.done.set_exception(error)


class Question:
    """One request of a server's, on its way to a client and back."""

    __slots__ = ("asker_id", "client", "link", "method", "minted", "outbox", "respond")

    def __init__(self, frame: Frame, link: Answerer, respond: Callable[[Frame], None]) -> None:
        self.asker_id: Id = frame.id  # type: ignore[assignment]  # the conversation heard a request
        self.method: str = frame.method  # type: ignore[assignment]
        self.link = link
        self.respond = respond
        self.client: Client | None = None
        self.outbox: Outbox | None = None
        self.minted = 0

    def put_to(self, client: Client, frame: Frame, outbox: Outbox) -> None:
        """Ask the client on that stream, if it declared that it can be asked this. (MCP §5.4)"""
        capability = CLIENT_CAPABILITY.get(self.method)
        if capability is not None and not client.may_be_asked(capability):
            self.refuse(METHOD_NOT_FOUND, f"this client did not declare {capability}")
            return
        try:
            outgoing = client.conversation.ask(frame, self, mint_token=True)
        except MalformedMessage as error:
            self.refuse(error.fault, str(error))
            return
        self.client, self.outbox, self.minted = client, outbox, int(str(outgoing.id))
        if not outbox.put(jsonrpc.encode(outgoing)):
            client.conversation.drop(self.minted)
            self.refuse(METHOD_NOT_FOUND, "this client is not listening")

    def answered(self, frame: Frame, status: int = 200) -> None:
        self.link.conversation.settle(self.asker_id)
        self.respond(frame)

    def told(self, frame: Frame) -> None:
        self.link.tell(frame)

    def asked(self, question: "Question", frame: Frame) -> None:
        question.refuse(METHOD_NOT_FOUND, "a client cannot ask amid an answer")

    def failed(self, error: Unavailable | MalformedMessage) -> None:
        self.refuse(error.fault, str(error))

    def refuse(self, fault: Fault, because: str) -> None:
        self.answered(jsonrpc.failure(self.asker_id, fault, because))

    def withdraw(self, reason: Raw | None) -> None:
        """The server takes its question back: tell the client where it was asked."""
        self.link.conversation.settle(self.asker_id)
        if self.client is not None and self.outbox is not None:
            told = self.client.conversation.withdraw(self.minted, reason)
            if told is not None:
                self.outbox.put(jsonrpc.encode(told))


class Underway:
    """Every call that waits, so that one slow look a second finds the late ones."""

    def __init__(self, now: Callable[[], float], deadline: float, cap: float) -> None:
        self.now = now
        self._deadline = deadline
        self._cap = cap
        self._calls: set[Call] = set()

    def __len__(self) -> int:
        return len(self._calls)

    def __iter__(self) -> Iterator[Call]:
        return iter(list(self._calls))

    def begin(self, frame: Frame, outbox: Outbox, client: Client | None) -> Call:
        """A client's request becomes a call; one whose id is in use already is refused."""
        call = Call(frame, outbox, client, self.now())
        if client is not None:
            client.conversation.take(call.asker_id, call)
        call.underway = self
        self._calls.add(call)
        return call

    def remove(self, call: Call) -> None:
        self._calls.discard(call)

    def look(self, patience: float) -> None:
        """End what is past its deadline; progress puts the deadline off, up to the cap.

        Who listens waits for ever, so no deadline is counted against that. A silent stream is
        nudged once in `patience` seconds, so that no proxy takes it for dead.
        """
        now = self.now()
        for call in list(self._calls):
            late = now - call.touched > self._deadline or now - call.began > self._cap
            if late and call.method != LISTEN:
                call.expire()
                continue
            if call.on_long is not None:
                watch, call.on_long = call.on_long, None
                watch()
            if now - call.began > patience:
                call.outbox.nudge()


async def tend(looks: Iterable[Callable[[float], None]], every: float, patience: float) -> None:
    """Look after what waits, again and again, until cancelled; one bad look stops no other."""
    while True:
        await asyncio.sleep(every)
        for look in looks:
            try:
                look(patience)
            except Exception:
                log.exception("a look after what waits failed")
