"""At which node a session is, by its name; and the way there for a request that came elsewhere.

A session of a node that is dead is nowhere, and its client begins anew. Where this node cannot know
that, because it hears nobody, its client is to come back.
"""

from datetime import timedelta
from typing import Final

from comity.kernel.carried import Incoming
from comity.kernel.carrying import Answer, Carrying
from comity.kernel.peers import Peers
from comity.wire.errors import CUT_OFF, Unavailable
from comity.wire.nodes import epoch_in

WHAT: Final = "http"
SOON: Final = timedelta(seconds=1)


class Homes:
    """The nodes, as those know them who look for a session."""

    def __init__(self, peers: Peers, carrying: Carrying) -> None:
        self._peers = peers
        self._carrying = carrying

    def home_of(self, session_id: str) -> str | None:
        """The other node at which a session is; None where it is here, or nowhere. Raises."""
        epoch = epoch_in(session_id)
        if epoch is None or epoch == self._peers.me.epoch:
            return None
        node = self._peers.of_epoch(epoch)
        if node is None and not self._peers.has_heard_all:
            raise Unavailable(
                "at which node this session is cannot be known just now", CUT_OFF, SOON
            )
        return node

    async def ask(self, node: str, head: bytes, body: bytes) -> Incoming:
        """Have a request answered there; gives the head of the answer, then its body."""
        return await self._carrying.open(node, WHAT, head, body)

    def answer(self, how: Answer) -> None:
        """Have requests answered that came to other nodes, and are for this one."""
        self._carrying.answer(WHAT, how)
