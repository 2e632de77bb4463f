"""A call that waits for a person, as a question on its own stream: `elicitation/create`.

For clients of the handshake era. Whoever may answer for itself is asked by a form; anybody else
whose client can show a page is given one, where an authority answers. The call stays held.
"""

import logging
import secrets
from typing import Final

from comity.kernel.held import HeldCall
from comity.kernel.own_rounds import mode_for, params_of
from comity.kernel.question import Question
from comity.kernel.sessions import Session
from comity.rules import ask_forms
from comity.rules.ask_forms import Mode
from comity.wire import jsonrpc, mcp
from comity.wire.asks import Ask, Verdict
from comity.wire.errors import MalformedMessage, Unavailable
from comity.wire.jsonrpc import UNSET, Frame

log = logging.getLogger(__name__)

SINCE: Final = {Mode.FORM: "2025-06-18", Mode.URL: "2025-11-25"}
"""The first version of MCP in which a client can be asked so."""


class StreamAsks:
    """The form for clients of the handshake era."""

    def take(self, held: HeldCall, ask: Ask) -> bool:
        client = held.call.client
        if not isinstance(client, Session):
            return False
        mode = mode_for(held, ask, client.capabilities)
        if mode is None or client.version < SINCE[mode]:
            return False
        StreamAsk(held, ask, client, mode).begin()
        return True


class StreamAsk:
    """One question that is open on the stream of one call."""

    def __init__(self, held: HeldCall, ask: Ask, session: Session, mode: Mode) -> None:
        self._held = held
        self._ask = ask
        self._session = session
        self._mode = mode
        self._named = secrets.token_hex(16)
        self._visits = False
        self._question: Question | None = None

    def begin(self) -> None:
        held, ask = self._held, self._ask
        params = params_of(held, ask, self._mode)
        if self._mode is Mode.URL:
            params["elicitationId"] = self._named
        if self._session.version < SINCE[Mode.URL]:
            # There was one way to ask, which had no name.
            del params["mode"]
        frame = jsonrpc.request(self._named, mcp.ELICIT, params)
        self._question = Question(frame, held, self._hear)
        held.endings.append(self._end)
        self._question.put_to(self._session, frame, held.call.outbox)

    def _hear(self, answer: Frame) -> None:
        self._question = None
        if answer.result is UNSET:
            # It cannot be asked after all; the call waits all the same.
            log.debug("a client did not take a question of ours")
            return
        try:
            verdict = ask_forms.verdict_in(self._mode, answer.result)
        except MalformedMessage as error:
            refused = error
            self._held.let_go(lambda call: call.failed(refused))
            return
        if self._mode is Mode.URL and verdict is Verdict.ACCEPT:
            self._visits = True
        else:
            self._held.holding.chores.start(self._answer(verdict))

    async def _answer(self, verdict: Verdict) -> None:
        try:
            await self._held.take_answer(self._ask, self._mode, verdict)
        except (Unavailable, MalformedMessage) as error:
            refused = error
            self._held.let_go(lambda call: call.failed(refused))

    def _end(self) -> None:
        """The call waits no longer: neither does the question, nor whoever visits the page."""
        question, self._question = self._question, None
        if question is not None:
            question.withdraw(None)
        if self._visits:
            told = jsonrpc.notification(mcp.ELICITED, {"elicitationId": self._named})
            self._held.call.outbox.put(jsonrpc.encode(told))
