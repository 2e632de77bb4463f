"""The table of protocol methods that the gateway itself answers.

A function is registered by a decorator: `@method("mgp/access/query")`.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final

from msgspec import Raw

from comity.errors import METHOD_NOT_FOUND, MalformedMessage
from comity.mcp.actors import Actor
from comity.mcp.jsonrpc import Frame
from comity.mcp.mgp import METHOD_PREFIX, MgpExtension, NegotiatedTerms
from comity.sessions.calls import Call
from comity.sessions.sessions import Session


@dataclass(frozen=True, slots=True)
class MethodRequest:
    """A request for a method of the gateway. `session` is None for modern requests."""

    call: Call
    session: Session | None
    terms: NegotiatedTerms | None
    frame: Frame

    @property
    def actor(self) -> Actor:
        return self.call.client_stream.actor

    @property
    def params(self) -> dict[str, Raw]:
        return self.frame.parameters


type Answer = Callable[[MethodRequest], Awaitable[Mapping[str, object] | None]]
"""Returns the result, or None if the call is answered elsewhere.

Raises MalformedMessage or Unavailable.
"""


def method[F: Answer | Callable[..., object]](
    name: str, extension: MgpExtension | None = None
) -> Callable[[F], F]:
    """Mark a function as the answer to the protocol method of this name.

    With an extension, it answers only clients that negotiated the extension.
    """

    def mark(function: F) -> F:
        marks: list[tuple[str, MgpExtension | None]] = function.__dict__.setdefault(
            _METHODS_ATTRIBUTE, []
        )
        marks.append((name, extension))
        return function

    return mark


_METHODS_ATTRIBUTE: Final = "comity_methods"


class MethodTable:
    """The protocol methods that the gateway answers itself, each with its function."""

    def __init__(self) -> None:
        self._handler_by_method: dict[str, tuple[MgpExtension | None, Answer]] = {}

    def register(self, *services: object) -> None:
        """Add the marked functions of these services.

        Raises ValueError if a method already has another function.
        """
        for service in services:
            for attribute, value in vars(type(service)).items():
                for name, extension in getattr(value, _METHODS_ATTRIBUTE, ()):
                    handler = (extension, getattr(service, attribute))
                    if self._handler_by_method.setdefault(name, handler) != handler:
                        raise ValueError(f"{name} is answered twice")

    def has_method(self, method: str) -> bool:
        """Return whether the gateway answers this method itself.

        It answers all MGP methods, because `/mcp` forwards none of them to servers.
        """
        return method in self._handler_by_method or method.startswith(METHOD_PREFIX)

    async def answer(self, request: MethodRequest) -> dict[str, object] | None:
        """Return the result of a method.

        Raises MalformedMessage if the method is unknown or its extension was not negotiated.
        """
        method = request.call.method
        if method not in self._handler_by_method:
            raise MalformedMessage(f"there is no {method} here", METHOD_NOT_FOUND)
        extension, answer = self._handler_by_method[method]
        if extension is not None and (
            request.terms is None or extension not in request.terms.extensions
        ):
            reason = f"{method} needs the MGP extension {extension}, negotiated"
            raise MalformedMessage(reason, METHOD_NOT_FOUND)
        found = await answer(request)
        return None if found is None else {**found}
