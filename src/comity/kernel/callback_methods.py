"""`mgp/callback/respond` at the door of all servers: a client answers what it was called back for.

Rule 1: it is an answer to an ask as at any other door: whoever may not answer there may not here,
        and nobody answers what is asked amid its own call unless it was granted that. (D-98)
Rule 2: it is for what servers ask by a callback, and answered once. (MGP §13.4, D-28)
"""

from collections.abc import Mapping

from comity.kernel.approvals import NOT_THERE, Approvals
from comity.kernel.own_methods import Asked, OwnMethods
from comity.rules.callbacks import answer_of, is_callback
from comity.wire.callbacks import RESPOND, responded
from comity.wire.errors import INVALID_PARAMS, MalformedMessage
from comity.wire.negotiation import Extension


class CallbackMethods:
    """Takes the answers of clients that negotiated `bidirectional` with the gateway."""

    def __init__(self, approvals: Approvals) -> None:
        self._approvals = approvals

    def join(self, methods: OwnMethods) -> None:
        methods.add(RESPOND, Extension.BIDIRECTIONAL, self._respond)

    async def _respond(self, asked: Asked) -> Mapping[str, object]:
        id, said = responded(asked.frame.params)
        ask = await self._approvals.get(asked.actor, id)
        if not is_callback(ask):
            raise MalformedMessage(NOT_THERE, INVALID_PARAMS)
        verdict, content = answer_of(ask.kind, said)
        await self._approvals.answer(asked.actor, id, verdict, content=content)
        return {"callback_id": id, "accepted": True}
