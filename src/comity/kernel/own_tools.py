"""What the gateway offers of its own beside, or in the place of, its servers' tools."""

from typing import Protocol

from comity.kernel.call import Call
from comity.kernel.catalog import Offer
from comity.kernel.own_methods import Asked
from comity.wire.jsonrpc import Frame


class OwnTools(Protocol):
    """Tools of the gateway itself, by which an agent finds others and uses them."""

    def listed(self, call: Call) -> list[bytes] | None:
        """The definitions that this client is given instead of all; None where it is given all."""
        ...

    def takes(self, name: str | None) -> bool:
        """Whether a tool of this name is the gateway's own."""
        ...

    async def called(self, asked: Asked) -> Frame | None:
        """The call of a server's tool that this one stands for; None once it is answered.

        Raises MalformedMessage or Unavailable.
        """
        ...

    def used(self, call: Call, offer: Offer) -> None:
        """A server's tool is called by somebody who was granted it."""
        ...
