"""What a server samples where its client has no model: the gateway's own, where people agree. (MCP)

Rule 1: a client that can be asked is asked; this is for those that cannot.
Rule 2: never silently: people are asked each time, unless the operator decided for all times.
Rule 3: who asks pays: the server, as the party `server:ID`, within its budgets.
Rule 4: it ends with the call amid which it was asked, at the model too.
"""

import asyncio
import hashlib
import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

from comity.kernel.approvals import Approvals
from comity.kernel.inquiries import CALL_IS_OVER, Inquiries, call_of
from comity.kernel.live.parts import Engine, Inferring
from comity.kernel.question import Errand, Question
from comity.kernel.tallies import name_in
from comity.ports.models import Prompt, Step
from comity.rules.callbacks import quoted
from comity.rules.permissions import SUBJECT
from comity.wire import inference, jsonrpc, mcp
from comity.wire.asks import Ask, Kind, State
from comity.wire.contents import said, text_of
from comity.wire.errors import (
    DECLINED,
    EXHAUSTED,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    MalformedMessage,
    Unavailable,
)
from comity.wire.inference import Sampled
from comity.wire.jsonrpc import UNSET, Frame

log = logging.getLogger(__name__)

type Choice = Literal["ask", "deny", "allow"]
type Redact = Callable[[object], object]

MOST_BYTES: Final = 1024 * 1024
MOST_AT_ONCE: Final = 16
SHOWN: Final = 2_000


@dataclass(frozen=True, slots=True)
class _Wish:
    """What one server wants, amid which call of whom."""

    server: str
    sampled: Sampled
    asker: str
    tool: str = ""
    trace: str = ""
    # Whether whoever calls may answer for itself.
    own: bool = False

    @property
    def words(self) -> str:
        return "\n".join(text_of(each.content) for each in self.sampled.messages)


class Sampling:
    """Answers `sampling/createMessage` in the place of clients that cannot."""

    def __init__(
        self,
        engine: Engine,
        approvals: Approvals,
        inquiries: Inquiries,
        choice: Choice = "ask",
        redact: Redact = lambda value: value,
    ) -> None:
        self._engine = engine
        self._approvals = approvals
        self._inquiries = inquiries
        self._choice = choice
        self._redact = redact
        self._tasks: dict[asyncio.Task[None], str] = {}
        self._amid: dict[Question, Errand] = {}
        inquiries.endings.append(self._over)

    @property
    def stands_in(self) -> bool:
        """Whether there is anybody to answer in a client's place."""
        if self._choice == "deny":
            return False
        try:
            self._engine.info()
        except Unavailable:
            return False
        return True

    def instead(self, question: Question, frame: Frame) -> bool:
        """Whether it is answered here; then the question has its answer, or will have one."""
        if question.method != mcp.SAMPLE or not self.stands_in:
            return False
        try:
            wish = self._wish(question, frame)
        except MalformedMessage as error:
            question.refuse(INVALID_PARAMS, str(error))
            return True
        if list(self._tasks.values()).count(wish.server) >= MOST_AT_ONCE:
            question.refuse(EXHAUSTED, f"{MOST_AT_ONCE} samplings of this server are under way")
            return True
        task = asyncio.ensure_future(self._run(question, wish))
        self._tasks[task] = wish.server
        task.add_done_callback(lambda done: self._tasks.pop(done, None))
        before = question.settled
        if question.amid is not None:
            self._amid[question] = question.amid
            self._inquiries.follow(question.link.conversation)

        def settled() -> None:
            """Answered; or nobody wants to know it any more."""
            self._amid.pop(question, None)
            if asyncio.current_task() is not task:
                task.cancel()
            if before is not None:
                before()

        question.settled = settled
        return True

    def stop(self) -> None:
        for task in list(self._tasks):
            task.cancel()

    def _over(self, errand: Errand) -> None:
        """The call is over amid which it was asked."""
        for question in [each for each, amid in self._amid.items() if amid is errand]:
            question.refuse(DECLINED, CALL_IS_OVER)

    def _wish(self, question: Question, frame: Frame) -> _Wish:
        if frame.params is UNSET or len(frame.params) > MOST_BYTES:
            raise MalformedMessage(f"sampling has messages, of at most {MOST_BYTES} bytes")
        sampled = inference.sampled_in(frame.params)
        call = call_of(question.amid)
        counted = None if call is None else call.counted
        server = str(getattr(question.link, "server", "") if counted is None else counted.server)
        if call is None:
            return _Wish(server, sampled, SUBJECT + server)
        tool = (call.tool or name_in(call.params))[:200]
        actor = call.outbox.actor
        own = self._approvals.is_own(actor)
        return _Wish(server, sampled, actor.party, tool, call.traced(), own)

    async def _run(self, question: Question, wish: _Wish) -> None:
        try:
            answer = await self._answered(wish)
        except (Unavailable, MalformedMessage) as error:
            question.refuse(error.fault, str(error))
        except Exception:
            log.exception("sampling for server %r ended in a bug", wish.server)
            question.refuse(INTERNAL_ERROR, "the gateway failed")
        else:
            question.answered(jsonrpc.result(question.asker_id, answer))

    async def _answered(self, wish: _Wish) -> dict[str, object]:
        if self._choice == "ask":
            await self._agreed(wish)
        sampled = wish.sampled
        prompt = Prompt(
            tuple(Step(each.role, each.content) for each in sampled.messages),
            said(sampled.system),
            max_tokens=sampled.max_tokens,
            temperature=sampled.temperature,
            stop=sampled.stop,
        )
        hints = {"model": sampled.hint} if sampled.hint else {}
        inferring = Inferring(
            prompt,
            SUBJECT + wish.server,
            f"inf_{secrets.token_hex(12)}",
            wish.server,
            hints=hints,
        )
        reply = await self._engine.infer(inferring)
        return inference.sampling_answered(text_of(reply.content), reply.model, reply.finish)

    async def _agreed(self, wish: _Wish) -> None:
        """Until people have said yes. Raises MalformedMessage where they did not."""
        approvals = self._approvals
        ask = approvals.new(lambda id, at, until: self._question(wish, id, at, until))
        try:
            ask = await approvals.put(ask)
        except asyncio.CancelledError:
            await approvals.withdraw(ask, "whoever wanted to know does so no longer")
            raise
        used = None
        if ask.state is State.ACCEPTED:
            used = await approvals.use(ask, ask.id)
        if used is None:
            because = next((each.reason for each in reversed(ask.answers) if each.reason), "")
            words = "nobody agreed to this sampling" + (f": {because}" if because else "")
            raise MalformedMessage(words, DECLINED)

    def _question(self, wish: _Wish, id: str, at: datetime, until: datetime) -> Ask:
        shown = str(self._redact(wish.words))[:SHOWN]
        amid = f", amid a call of {wish.tool} by {wish.asker}" if wish.tool else ""
        message = f"Server {wish.server} wants to ask a model{amid}: {quoted(shown)}"
        about: dict[str, object] = {
            "tool": f"{wish.server}/{wish.tool}" if wish.tool else wish.server,
            "asked_by": SUBJECT + wish.server,
            "messages": shown,
            "system": str(self._redact(wish.sampled.system))[:SHOWN],
            "max_tokens": wish.sampled.max_tokens,
        }
        # Each question is its own: no answer is good for another one.
        digest = hashlib.sha256(f"sampling {id}".encode()).hexdigest()
        return Ask(
            *(id, Kind.SAMPLING, wish.asker, wish.server, wish.tool, digest),
            *(message, about, at, until),
            own=wish.own,
            trace=wish.trace,
        )
