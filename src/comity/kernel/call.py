"""Calls under way: who asked, who answers, and the stream the answer goes to.

A Call goes from a client to a server, a Question (`kernel.question`) from a server to a client.
Both are errands of two conversations at once: open in the answerer's, taken in the asker's.
"""

import logging
import secrets
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Protocol

from msgspec import Raw

from comity.kernel.outbox import Outbox
from comity.kernel.question import Answerer, Client, Question
from comity.kernel.shares import Shares
from comity.kernel.tallies import CANCELLED, NO_ERROR, OK, ServerTallies, name_in, outcome_of
from comity.rules import negotiation, refusals
from comity.rules.access import Judgement
from comity.rules.negotiation import Terms
from comity.rules.refusals import Asked, Refusal
from comity.wire import jsonrpc
from comity.wire.errors import (
    HTTP_STATUS_OF_CODE,
    TIMEOUT,
    UPSTREAM_FAILED,
    Fault,
    MalformedMessage,
    Unavailable,
)
from comity.wire.jsonrpc import Frame, Id
from comity.wire.negotiation import NOTICE_PREFIX

log = logging.getLogger(__name__)


class Overseer(Protocol):
    """Who knows every call under way."""

    @property
    def now(self) -> Callable[[], float]: ...
    @property
    def recorder(self) -> "Recorder | None": ...
    def end(self, call: "Call", outcome: str, answer: Frame | None) -> None: ...
    def left(self, call: "Call") -> float: ...


class Recorder(Protocol):
    """Who writes down how calls end, and says when their answers may go."""

    def conclude(
        self, call: "Call", outcome: str, refusal: Refusal | None, reply: Callable[[], None]
    ) -> None: ...


class Record(Protocol):
    """What was written down of a call before it left, and whether it has."""

    id: str
    has_left: bool


class Partial(Protocol):
    """What a client hears of a call before its end, in the client's own words."""

    def told(self, call: "Call", frame: Frame) -> bool:
        """Whether a notice of the server's is taken care of."""
        ...

    def finished(self, call: "Call", frame: Frame) -> Frame:
        """The answer, with what is to be said of what came before it."""
        ...

    def summary(self) -> dict[str, object]:
        """What is written down of it."""
        ...


class Perseverance(Protocol):
    """Who makes a call again that failed, where its operator allows it."""

    @property
    def idempotent(self) -> bool: ...
    @property
    def was_sent(self) -> bool: ...
    @property
    def fallback_tool(self) -> str: ...
    def hears(self, call: "Call", frame: Frame) -> bool: ...
    def survives(self, call: "Call", error: Unavailable | MalformedMessage) -> bool: ...


class Call:
    """One request of a client's, on its way to a server and back."""

    # Defaults stand on the class: one of these is made for every call, and most stay untouched.
    link: Answerer | None = None
    minted = 0
    adapt: Callable[[Frame], Frame] | None = None
    retell: Callable[[Frame], Frame | None] | None = None
    on_long: Callable[[], None] | None = None
    underway: Overseer | None = None
    counted: ServerTallies | None = None
    tool: str | None = None
    target: tuple[str, str] | None = None
    judged: Judgement | None = None
    # What a person has said to it: the standing answer, or the ask that it used.
    answered_by = ""
    record: Record | None = None
    is_concluded = False
    # What it is counted in while it is open, and for whom; or what is full: it is turned away.
    share: tuple[Shares, str] | None = None
    beyond: Shares | None = None
    # What its client says to a question of our own, and who hears that it is asked one by a server.
    brought: object | None = None
    on_round: Callable[[Frame], None] | None = None
    # Whether it goes on apart from its client, which asks after it.
    is_detached = False
    trace = ""
    retrying: Perseverance | None = None
    is_for_all_servers = False
    # Whether it came from another node, or goes to a server of the other protocol version.
    is_remote = False
    is_bridged = False
    held: float | None = None
    asking = 0
    # What is told of it before its end, where its client can hear that; and whether its server
    # was asked to tell it.
    stream: Partial | None = None
    is_streamed = False

    def __init__(self, frame: Frame, outbox: Outbox, client: Client | None, now: float) -> None:
        self.asker_id: Id = frame.id  # type: ignore[assignment]  # the door let only requests in
        self.method: str = frame.method  # type: ignore[assignment]  # likewise
        params = frame.params
        if params is not jsonrpc.UNSET and len(params) > refusals.MOST_KEPT_BYTES:
            self.tool = name_in(params)
            params = refusals.kept(params)
        self.params = params
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
        if frame.error is not jsonrpc.UNSET:
            worded = self._worded(frame)
            if worded is None:
                return
            frame, status = worded, self._status(worded, status)
        elif self.stream is not None:
            frame = self.stream.finished(self, frame)
        encoded = jsonrpc.encode(frame)
        if self.on_round is not None:
            self.on_round(frame)
        is_well = encoded.endswith(NO_ERROR)
        outcome = OK if is_well else outcome_of(self.method, frame, encoded)
        self._settle(outcome, frame)
        self._reply(encoded, status, outcome)

    def _worded(self, frame: Frame) -> Frame | None:
        """A server's error as its client may hear it; None where it is dealt with already."""
        if self.retrying is not None and self.retrying.hears(self, frame):
            return None
        if self.outbox.registry is not None:
            self.turn_down(refusals.of_server(frame))
            return None
        if self.link is not None and self.link.mgp is not None and self.terms() is None:
            return refusals.in_plain_words(self._as_asked(), frame)
        return frame

    def told(self, frame: Frame) -> None:
        if self.underway is not None:
            self.touched = self.underway.now()
        if self.stream is not None and self.stream.told(self, frame):
            return
        if str(frame.method).startswith(NOTICE_PREFIX) and not self.speaks_mgp_with_server():
            log.debug("nobody here agreed with a server to be told %s", frame.method)
            return
        retold = frame if self.retell is None else self.retell(frame)
        if retold is None:
            return
        if not self.outbox.put(jsonrpc.encode(retold)) and self.outbox.overrun:
            told = {"trace_id": self.trace_id()}
            log.warning("a client reads %s too slowly; it is ended", self.method, extra=told)
            self.withdraw(None)

    def asked(self, question: Question, frame: Frame) -> None:
        question.amid, question.settled = self, self.release
        self.hold()
        if self.client is None:
            question.decline(frame, "this client cannot be asked by a request")
        else:
            retold = frame if self.retell is None else self.retell(frame)
            question.put_to(self.client, retold or frame, self.outbox)

    def failed(self, error: Unavailable | MalformedMessage) -> None:
        if self.retrying is not None and self.retrying.survives(self, error):
            return
        after = error.retry_after if isinstance(error, Unavailable) else None
        fallback = self.retrying.fallback_tool if self.retrying and error.fault.retryable else ""
        self.turn_down(Refusal(error.fault, str(error), after, fallback_tool=fallback))

    def refuse(self, fault: Fault, because: str, retry_after: timedelta | None = None) -> None:
        """Answer in the server's stead that it was not done, and what can be done about that."""
        self.turn_down(Refusal(fault, because, retry_after))

    def turn_down(self, refusal: Refusal) -> None:
        """The same, with all that is known of why."""
        asked = self._as_asked()
        trace = self.traced()
        told = {"trace_id": trace}
        log.debug("%s is refused: %s (trace %s)", self.method, refusal.because, trace, extra=told)
        worded = refusals.word(asked, refusal, trace)
        self._settle(refusal.fault.error_type, worded)
        at_registry = asked.registry is not None
        status = refusal.fault.reg_status if at_registry else self._status(worded, 200)
        self._reply(jsonrpc.encode(worded), status, refusal.fault.error_type, refusal)

    def put_off(self, answer: Frame, refusal: Refusal) -> None:
        """Answer with something to do first: nothing was done yet, and why not is written down."""
        self._settle(refusal.fault.error_type, answer)
        self._reply(jsonrpc.encode(answer), 200, refusal.fault.error_type, refusal)

    def cut_short(self, answer: Frame, reason: Raw | None) -> None:
        """The client wants no more than has come so far: tell the server, and answer with that."""
        self._settle(CANCELLED, answer)
        if self.link is not None:
            self.link.forsake(self.minted, reason)
        self._reply(jsonrpc.encode(answer), 200, CANCELLED)

    def withdraw(self, reason: Raw | None) -> None:
        """The client no longer wants it: tell the server, and end the stream without an answer."""
        self._settle(CANCELLED, None)
        if self.link is not None:
            self.link.forsake(self.minted, reason)
        if self.underway is not None and self.underway.recorder is not None:
            self.underway.recorder.conclude(self, CANCELLED, None, self.outbox.end)
        else:
            self.outbox.end()

    def expire(self, waited: float = 0) -> None:
        """The deadline has passed: tell the server to stop, and the client that it did not."""
        if self.link is not None:
            self.link.forsake(self.minted, jsonrpc.to_raw("deadline exceeded"))
        details: dict[str, object] = {"timeout_ms": round(waited * 1000)} if waited else {}
        if self.tool is not None:
            details["tool_name"] = self.tool
        because = "the server did not answer before the call's deadline"
        self.turn_down(Refusal(TIMEOUT, because, details=details))

    def hold(self) -> None:
        """Somebody is asked: until there is an answer, no deadline runs. (D-94)"""
        if self.underway is not None:
            self.held = self.underway.now() if self.held is None else self.held
            self.asking += 1

    def release(self) -> None:
        """There is an answer; with the last one the deadlines go on where they stopped."""
        self.asking -= 1
        if self.underway is not None and self.held is not None and self.asking <= 0:
            self.asking = 0
            self.began += self.underway.now() - self.held
            self.touched = self.underway.now()
            self.held = None

    def _as_asked(self) -> Asked:
        modern, sent, tries = self.client is None, self.link is not None, self.retrying
        return Asked(
            self.asker_id,
            self.method,
            self.terms(),
            modern,
            sent or (tries is not None and tries.was_sent),
            tries is not None and tries.idempotent,
            self.outbox.registry,
        )

    def terms(self) -> Terms | None:
        """What the client agreed on; in the modern era each request says it anew."""
        return negotiation.of_request(self.params) if self.client is None else self.client.mgp

    def speaks_mgp_with_server(self) -> bool:
        """Whether the client itself negotiated with the server; at the door of all it cannot."""
        if self.client is not None:
            return self.client.speaks_mgp_with_servers
        return not self.is_for_all_servers and self.terms() is not None

    def _status(self, frame: Frame, status: int) -> int:
        """The HTTP status of an answer: in the modern era an error's code decides it."""
        if self.client is not None or status != 200:
            return status
        error = jsonrpc.error_of(frame)
        return 200 if error is None else HTTP_STATUS_OF_CODE.get(error.code, 200)

    def trace_id(self) -> str | None:
        """The trace that the call is part of, as 32 hexadecimal digits; most are part of none."""
        if self.trace:
            return self.trace
        found = refusals.trace_of(self.params)
        trace = self.outbox.trace
        named = None if found is not None or trace is None else trace.context
        return found if named is None else named.trace_id

    @property
    def client_call(self) -> "Call | None":
        """The client's call that this one is made for; None while its client answers a question."""
        return self

    def traced(self) -> str:
        """The same; from now on every call has one."""
        self.trace = self.trace or self.trace_id() or secrets.token_hex(16)
        return self.trace

    def _reply(
        self, data: bytes, status: int, outcome: str, refusal: Refusal | None = None
    ) -> None:
        """The last word to the client; where that must be proved later, once it can be."""
        if self.underway is None or self.underway.recorder is None:
            self.outbox.finish(data, status)
        else:
            reply = partial(self.outbox.finish, data, status)
            self.underway.recorder.conclude(self, outcome, refusal, reply)

    def _settle(self, outcome: str, answer: Frame | None) -> None:
        if self.client is not None:
            self.client.conversation.settle(self.asker_id)
        if self.underway is not None:
            self.underway.end(self, outcome, answer)
