"""A proposal of a topic as an ask: what people read of it, who may answer, in whose name it runs.

Rule 1: what is asked about is one proposal: its id is in the digest, which every node can work out.
Rule 2: an answer widens nothing (D-102). What is proposed to a server of ours is called by the
        proposer, where its grants let it with a person's yes; otherwise by the person who says yes,
        where its own do. Where neither may, nobody can say yes.
Rule 3: secrets are left out of what is read; what would run stays in memory, and nowhere else.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from comity.kernel.admission import arguments_in
from comity.kernel.audit_recorder import kind_of
from comity.kernel.catalog import Catalog, Kind, Offer
from comity.kernel.catalog_access import Standing, Tools
from comity.kernel.furnished import Furnished
from comity.kernel.grants import Judge
from comity.rules import asks, topic_requests
from comity.rules.proposals import LIFETIME, Proposal
from comity.wire import mcp
from comity.wire.asks import Ask
from comity.wire.asks import Kind as AskKind
from comity.wire.grants import Effect, Grant
from comity.wire.jsonrpc import Frame
from comity.wire.parties import Actor

PROPOSAL: Final = "proposal"
"""The member of what an ask is about that says which proposal it is for."""

LONGEST_NAME: Final = 1_000
_TOPIC: Final = "topic."


@dataclass(slots=True)
class Pending:
    """One proposal that this node cares for; `server` is empty where it is for another member."""

    place: Furnished
    proposal: Proposal
    kind: str
    frame: Frame
    actor: Actor
    server: str
    trace: str
    ask: Ask | None = None

    @property
    def key(self) -> tuple[str, str]:
        return self.place.topic, self.proposal.id

    @property
    def method(self) -> str:
        return str(self.frame.method)

    @property
    def context(self) -> str:
        return topic_requests.context_of(self.frame)


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of tools and grants, and how secrets are left out."""

    judge: Judge
    catalog: Catalog
    tools: Tools | None
    redact: Callable[[object], object]
    key: bytes
    lasts: timedelta = LIFETIME

    def digest(self, topic: str, proposal: str) -> str:
        return asks.digest(PROPOSAL, topic, proposal, "", None, self.key)

    def offer(self, server: str, frame: Frame) -> Offer | None:
        if frame.method != mcp.CALL_TOOL:
            return None
        return self.catalog.offered(server, Kind.TOOL, topic_requests.context_of(frame))

    def standing(self, pending: Pending) -> Standing | None:
        """How the tool stands that is proposed to be called; None of anything else."""
        offer = self.offer(pending.server, pending.frame) if pending.server else None
        return None if offer is None or self.tools is None else self.tools.standing(offer)

    def standing_answer(self, pending: Pending) -> Grant | None:
        """The grant by which this proposal is fulfilled without asking: a precedent's."""
        standing = self.standing(pending)
        if standing is None or standing.refusal is not None or standing.is_confirmed_always:
            return None
        if standing.asked_each_time is not None:
            return None
        return self.judge.standing_answer(
            *(pending.actor, pending.server, pending.context),
            *(arguments_in(pending.frame), standing.digest),
        )

    def caller(self, pending: Pending, approver: Actor | None) -> Actor | None:
        """In whose name it is fulfilled; None where neither may do it."""
        named = (pending.actor, *(() if approver is None else (approver,)))
        may = (each for each in named if self._may(each, pending.method, pending))
        return next(may, None)

    def _may(self, actor: Actor, method: str, pending: Pending) -> bool:
        return self.may_call(actor, method, pending.server, pending.context)

    def may_call(self, actor: Actor, method: str, server: str, name: str) -> bool:
        """What is not about one thing of a server's is looked at where it is asked."""
        if not server or method not in topic_requests.VERBS:
            return True
        return self.judge.judge(actor, method, server, name).effect is not Effect.DENY

    def why_not(self, ask: Ask, actor: Actor) -> str | None:
        """What speaks against somebody's answer to an ask about a proposal."""
        method = ask.about.get("method")
        if PROPOSAL not in ask.about or ask.server.startswith(_TOPIC):
            return None
        proposer = Actor(ask.asker, kind_of(ask.asker))
        named = (str(method), ask.server, ask.tool)
        if any(self.may_call(each, *named) for each in (proposer, actor)):
            return None
        return (
            "neither whoever proposes this nor you were granted it, and an answer grants nothing; "
            "see `comity grants explain`"
        )

    def question(self, pending: Pending) -> Callable[[str, datetime, datetime], Ask]:
        """The ask for a proposal, once it has an id and a time. Raises MalformedMessage."""
        proposal, standing = pending.proposal, self.standing(pending)
        topic, context = pending.place.topic, pending.context
        target = pending.server or proposal.target[0]
        about = {
            **self._read(pending, standing),
            "topic": topic,
            PROPOSAL: proposal.id,
            "proposer": proposal.proposer,
            "method": pending.method,
            "to": target,
        }
        server = pending.server or f"{_TOPIC}{topic}"
        what = f"{pending.method} {context}".strip()
        message = f"{proposal.proposer} proposes {what} to {target} in topic {topic}"
        return lambda id, at, until: Ask(
            *(id, AskKind.CONFIRM, proposal.proposer, server, (context or what)[:LONGEST_NAME]),
            *(self.digest(topic, proposal.id), message[:1000], about, at, at + self.lasts),
            quorum=1 if standing is None else standing.quorum,
            trace=pending.trace,
        )

    def _read(self, pending: Pending, standing: Standing | None) -> Mapping[str, object]:
        """What would run, as people read it; that of a tool like any call of it."""
        offer = self.offer(pending.server, pending.frame) if pending.server else None
        if offer is None or standing is None:
            what = f"{pending.method} {pending.context}".strip()
            params = self.redact(topic_requests.values(pending.frame))
            return {"tool": what[:LONGEST_NAME], "params": params}
        arguments = arguments_in(pending.frame)
        return {
            "tool": offer.key,
            "risk": standing.risk,
            "definition": standing.digest,
            "arguments": self.redact(arguments),
            "arguments_digest": asks.arguments_digest(arguments, self.key),
        }
