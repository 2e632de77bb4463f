"""What the gateway itself answers at the door of all servers, method by method.

A method belongs to an extension of MGP, and does not exist for a client that did not negotiate it;
or to none, and is there for everybody.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from msgspec import Raw

from comity.kernel.call import Call
from comity.kernel.sessions import Session
from comity.rules.negotiation import Terms
from comity.wire import jsonrpc
from comity.wire.errors import METHOD_NOT_FOUND, MalformedMessage
from comity.wire.jsonrpc import Frame
from comity.wire.negotiation import METHOD_PREFIX, Extension
from comity.wire.parties import Actor


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that the gateway answers for itself; the modern era has no session."""

    call: Call
    session: Session | None
    terms: Terms | None
    frame: Frame

    @property
    def actor(self) -> Actor:
        return self.call.outbox.actor

    @property
    def params(self) -> dict[str, Raw]:
        return jsonrpc.params_of(self.frame)


type Answer = Callable[[Asked], Awaitable[Mapping[str, object] | None]]
"""None where the call is answered already, or will be. Raises MalformedMessage or Unavailable."""


class OwnMethods:
    """Every method that ends here, and who answers it."""

    def __init__(self) -> None:
        self._answers: dict[str, tuple[Extension | None, Answer]] = {}

    def add(self, method: str, extension: Extension | None, answer: Answer) -> None:
        self._answers[method] = (extension, answer)

    def takes(self, method: str) -> bool:
        """Whether a request ends here; of MGP all do, for no server hears of it at this door."""
        return method in self._answers or method.startswith(METHOD_PREFIX)

    async def answer(self, asked: Asked) -> dict[str, object] | None:
        """Raises MalformedMessage where there is no such method for this client."""
        method = asked.call.method
        if method not in self._answers:
            raise MalformedMessage(f"there is no {method} here", METHOD_NOT_FOUND)
        extension, answer = self._answers[method]
        if extension is not None and (
            asked.terms is None or extension not in asked.terms.extensions
        ):
            because = f"{method} needs the MGP extension {extension}, negotiated"
            raise MalformedMessage(because, METHOD_NOT_FOUND)
        found = await answer(asked)
        return None if found is None else {**found}
