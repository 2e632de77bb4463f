"""What a server elicits where its client cannot be asked: people are, where an operator wants that.

Rule 1: only a form, only amid a call, and only as `[asks] elicitations = "inbox"` says; everything
        else stays as it was: refused in the client's name. (MCP §5.6)
Rule 2: what goes to the server fits the form it gave. (rules.forms)
"""

import hashlib
from datetime import timedelta
from typing import Final

import msgspec

from comity.kernel.call import Call
from comity.kernel.inquiries import Asked, Inquiries, Inquiry, call_of
from comity.kernel.question import Question
from comity.rules.forms import form_in
from comity.wire import jsonrpc, mcp
from comity.wire.asks import Ask, Kind, State, Verdict
from comity.wire.errors import EXHAUSTED, INVALID_PARAMS, MalformedMessage
from comity.wire.jsonrpc import UNSET, Frame

MOST_BYTES: Final = 64 * 1024
LONGEST_MESSAGE: Final = 4_000
_FORM: Final = "form"


class Elicited:
    """Puts forms of servers into the inbox."""

    def __init__(self, inquiries: Inquiries, within: timedelta, *, stand_in: bool = False) -> None:
        self.stand_in = stand_in
        self._inquiries = inquiries
        self._within = within

    def instead(self, question: Question, frame: Frame) -> bool:
        """Whether people are asked; then the question has its answer, or will have one."""
        call = call_of(question.amid)
        if not self.stand_in or question.method != mcp.ELICIT or call is None:
            return False
        if jsonrpc.text(jsonrpc.params_of(frame).get("mode", b'"form"')) != _FORM:
            return False
        assert isinstance(question.amid, Call)
        try:
            asked = self._asked(str(call.counted.server if call.counted else ""), frame)
        except MalformedMessage as error:
            question.refuse(INVALID_PARAMS, str(error))
            return True
        full = self._inquiries.why_full(question.amid, asked.server)
        if full is not None:
            question.refuse(EXHAUSTED, full)
            return True
        self._begin(question, asked, question.amid, call)
        return True

    def _begin(self, question: Question, asked: Asked, errand: Call, call: Call) -> None:
        async def deliver(ended: Ask | None) -> None:
            question.answered(jsonrpc.result(question.asker_id, _answer(ended)))

        def forsake() -> None:
            question.answered(jsonrpc.result(question.asker_id, _answer(None)))

        ask = self._inquiries.ask_of(asked, call)
        inquiry = Inquiry(errand, call, asked.server, ask, deliver, forsake)
        before = question.settled

        def settled() -> None:
            """Answered; or its server has taken it back, and wants no answer any more."""
            inquiry.forsake = None
            self._inquiries.end(inquiry)
            if before is not None:
                before()

        question.settled = settled
        self._inquiries.follow(question.link.conversation)
        self._inquiries.begin(inquiry)

    def _asked(self, server: str, frame: Frame) -> Asked:
        params = jsonrpc.params_of(frame)
        message, schema = jsonrpc.text(params.get("message")), params.get("requestedSchema")
        if frame.params is UNSET or len(frame.params) > MOST_BYTES or schema is None:
            raise MalformedMessage(f"a form has a schema, and at most {MOST_BYTES} bytes")
        if message is None or not 0 < len(message) <= LONGEST_MESSAGE:
            raise MalformedMessage(f"a form has a message of at most {LONGEST_MESSAGE} characters")
        try:
            form = form_in(jsonrpc.value(schema))
        except ValueError as error:
            raise MalformedMessage(str(error)) from None

        def digest(name: str) -> str:
            whole = [server, name, frame.id, message, form]
            return hashlib.sha256(msgspec.json.encode(whole, order="deterministic")).hexdigest()

        return Asked(server, Kind.INPUT, message, self._within, digest, schema=form)


def _answer(ended: Ask | None) -> dict[str, object]:
    """What became of the ask, as an elicitation is answered."""
    if ended is None:
        return {"action": "cancel"}
    said = [each for each in ended.answers if each.verdict is Verdict.ACCEPT]
    if ended.state is State.USED and said:
        return {"action": "accept", "content": dict(said[-1].content)}
    return {"action": "decline" if ended.state is State.DECLINED else "cancel"}
