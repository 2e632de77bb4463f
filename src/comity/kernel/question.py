"""Questions under way: what a server asks amid a call or beside it, and the client that is asked.

A question is an errand, as a call is one (`kernel.call`): open in one conversation, taken in the
other.
"""

from collections.abc import Callable
from typing import Protocol

from msgspec import Raw

from comity.kernel.outbox import Outbox
from comity.rules.conversation import Conversation
from comity.rules.negotiation import Terms
from comity.wire import jsonrpc
from comity.wire.errors import METHOD_NOT_FOUND, Fault, MalformedMessage, Unavailable
from comity.wire.jsonrpc import Frame, Id
from comity.wire.mcp import CLIENT_CAPABILITY
from comity.wire.negotiation import METHOD_PREFIX


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
    @property
    def mgp(self) -> Terms | None: ...
    def tell(self, frame: Frame) -> None: ...
    def forsake(self, minted: int, reason: Raw | None) -> None: ...
    def throttle(self, minted: int, paused: bool) -> None: ...


class Client(Protocol):
    """The client side of a session, as far as a call or a question needs it."""

    @property
    def id(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def conversation(self) -> Conversation[Errand]: ...
    @property
    def mgp(self) -> Terms | None: ...
    @property
    def speaks_mgp_with_servers(self) -> bool: ...
    def may_be_asked(self, capability: str) -> bool: ...


class Question:
    """One request of a server's, on its way to a client and back."""

    client: Client | None = None
    outbox: Outbox | None = None
    settled: Callable[[], object] | None = None
    # The call amid which it is asked, and who may ask people where its client cannot be asked.
    amid: Errand | None = None
    instead: "Callable[[Question, Frame], bool] | None" = None
    minted = 0

    def __init__(self, frame: Frame, link: Answerer, respond: Callable[[Frame], None]) -> None:
        self.asker_id: Id = frame.id  # type: ignore[assignment]  # the conversation heard a request
        self.method: str = frame.method  # type: ignore[assignment]  # likewise
        self.link = link
        self.respond = respond

    def put_to(self, client: Client, frame: Frame, outbox: Outbox) -> None:
        """Ask the client on that stream, if it declared that it can be asked this. (MCP §5.4)"""
        capability = CLIENT_CAPABILITY.get(self.method)
        if capability is not None and not client.may_be_asked(capability):
            self.decline(frame, f"this client did not declare {capability}")
            return
        if self.method.startswith(METHOD_PREFIX) and not client.speaks_mgp_with_servers:
            self.refuse(METHOD_NOT_FOUND, "this client did not negotiate MGP with this server")
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

    def decline(self, frame: Frame, because: str) -> None:
        """This client cannot be asked; people are in its stead, where its operator wants that."""
        if self.instead is None or not self.instead(self, frame):
            self.refuse(METHOD_NOT_FOUND, because)

    def answered(self, frame: Frame, status: int = 200) -> None:
        self._settle()
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
        self._settle()
        if self.client is not None and self.outbox is not None:
            told = self.client.conversation.withdraw(self.minted, reason)
            if told is not None:
                self.outbox.put(jsonrpc.encode(told))

    def _settle(self) -> None:
        self.link.conversation.settle(self.asker_id)
        settled, self.settled = self.settled, None
        if settled is not None:
            settled()
