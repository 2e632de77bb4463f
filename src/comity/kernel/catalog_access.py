"""What an actor sees of the catalog, and which of it a call of its may use.

Rule 1: an endpoint sees the catalog through here alone, so it reaches only what was authorized.
Rule 2: the list that an actor gets holds what its calls are not denied.
Rule 3: an actor that may not use a name hears the same whether or not there is such an entry.
Rule 4: what cannot be decided is denied.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Final, Protocol

from msgspec import Raw

from comity.kernel.call import Call
from comity.kernel.catalog import LONGEST_NAME, Catalog, Kind, Offer
from comity.kernel.grants import AllowAll, Judge, StillHolds
from comity.kernel.sight import Sight
from comity.rules.access import Judgement
from comity.rules.examined import UNLISTED
from comity.rules.names import public_name
from comity.rules.refusals import Refusal
from comity.rules.secret_forms import without_secrets
from comity.wire import mcp
from comity.wire.errors import (
    ACCESS_DENIED,
    INVALID_PARAMS,
    RESOURCE_NOT_FOUND,
    TOOL_NOT_FOUND,
    MalformedMessage,
    Unavailable,
)
from comity.wire.grants import LIST, READ, Effect
from comity.wire.parties import Actor
from comity.wire.security import Risk

VERBS: Final[Mapping[Kind, str]] = {
    Kind.TOOL: mcp.CALL_TOOL,
    Kind.PROMPT: mcp.GET_PROMPT,
    Kind.RESOURCE: mcp.READ_RESOURCE,
    Kind.TEMPLATE: mcp.READ_RESOURCE,
}
NOT_FOUND: Final = {
    Kind.TOOL: TOOL_NOT_FOUND,
    Kind.PROMPT: INVALID_PARAMS,
    Kind.RESOURCE: RESOURCE_NOT_FOUND,
    Kind.TEMPLATE: RESOURCE_NOT_FOUND,
}

type Sees = Callable[[str, Mapping[str, Raw]], bool]
"""Whether an entry of a list is shown, by its name and by all that it says."""


class Standing(Protocol):
    """What is known of one tool beside its definition."""

    @property
    def refusal(self) -> Refusal | None:
        """Why nobody can call it just now: it has changed, or its server lacks a permission."""
        ...

    @property
    def must_be_confirmed(self) -> bool:
        """Whether a person has to say yes to each call, unless the tool itself was granted."""
        ...

    @property
    def is_confirmed_always(self) -> bool:
        """Whether a person has to say yes even then."""
        ...

    @property
    def asked_each_time(self) -> str | None:
        """Why no answer to one of its calls may stand for others; None where it may."""
        ...

    @property
    def cost(self) -> int:
        """How much of its caller's rate a call takes."""
        ...

    @property
    def risk(self) -> Risk: ...

    @property
    def digest(self) -> str:
        """Of the very definition that this is about."""
        ...

    @property
    def quorum(self) -> int:
        """How many people have to say yes, where any has to."""
        ...


class Tools(Protocol):
    """Who knows how each tool stands."""

    def standing(self, offer: Offer) -> Standing: ...

    def as_shown(self, offer: Offer, entry: Mapping[str, Raw]) -> Offer:
        """An offer as its server just described it to somebody."""
        ...


class CatalogAccess:
    """Decides which entries of the catalog an actor sees and may use."""

    def __init__(
        self, catalog: Catalog, grants: Judge | None = None, tools: Tools | None = None
    ) -> None:
        self.catalog = catalog
        self._grants: Judge = AllowAll() if grants is None else grants
        self._tools = tools

    def page(
        self, actor: Actor, kind: Kind, shown: Callable[[str], bool], cursor: str | None
    ) -> tuple[list[bytes], str | None]:
        """The definitions that this actor may use, from the cursor on."""
        if isinstance(self._grants, AllowAll) and self._tools is None:
            return self.catalog.page(kind, shown, cursor)
        return self.catalog.page(kind, shown, cursor, self.sight_of(actor, kind))

    def catalogue(
        self, actor: Actor, shown: Callable[[str], bool], cursor: str | None
    ) -> tuple[list[bytes], str | None]:
        """The tools that an actor may call; or may list, where an entry says `tools/list`.

        Whoever may do everything has no such entry, and is not shown what a guardrail forbids.
        """
        if not self._is_let(actor, LIST, "", ""):
            return self.page(actor, Kind.TOOL, shown, cursor)
        return self.catalog.page(Kind.TOOL, shown, cursor, Sight(self._grants, actor, LIST))

    def find_readable(self, call: Call, key: str | None) -> Offer:
        """A tool that this actor may call, or whose definition it may read."""
        offer = self.catalog.named(Kind.TOOL, _name(key))
        if offer is not None and any(
            self._is_let(call.outbox.actor, verb, offer.server, offer.name) for verb in (READ, LIST)
        ):
            return offer
        return self.find(call, Kind.TOOL, key)

    def _is_let(self, actor: Actor, verb: str, server: str, name: str) -> bool:
        """Whether an entry allows this very verb, and not only everything."""
        judged = self._grants.judge(actor, verb, server, name)
        named = judged.grant is not None and judged.grant.verb == verb
        return named and judged.effect is Effect.ALLOW

    def sight(self, actor: Actor, kind: Kind, server: str) -> Sees | None:
        """Which of the entries in a server's own list an actor is shown; None where it is all."""
        aside = self.catalog.quarantined(server, kind)
        seen = self.sight_of(actor, kind)
        if not aside and seen.is_whole(server):
            return None
        view = seen.over(server)

        def sees(name: str, entry: Mapping[str, Raw]) -> bool:
            if view is None or name in aside:
                return False
            offer = self.catalog.offered(server, kind, name)
            if offer is None:
                offer = Offer(public_name(server, name), server, name, UNLISTED)
            if kind is Kind.TOOL and self._tools is not None:
                # It may be described otherwise here than it was to us.
                offer = self._tools.as_shown(offer, entry)
            return view.sees(offer)

        return sees

    def names(self, actor: Actor, kind: Kind, server: str) -> list[str]:
        """What this actor may use of a server, by the server's own names."""
        view = self.sight_of(actor, kind).over(server)
        found = [] if view is None else self.catalog.seen(server, kind, view)
        return [offer.name for offer in found]

    def count(self, actor: Actor, kind: Kind, server: str) -> int:
        """How much of a server was granted to this actor, whether or not it can be used now."""
        sight = Sight(self._grants, actor, VERBS[kind])
        if sight.is_whole(server):
            return self.catalog.count(server, kind)
        view = sight.over(server)
        return 0 if view is None else len(self.catalog.seen(server, kind, view))

    def shows(self, actor: Actor, kind: Kind, offer: Offer) -> bool:
        """Whether this offer is among those that are listed for this actor."""
        return self._sees(actor, kind, offer)

    def in_sight(self, actor: Actor) -> Collection[str] | None:
        """The only servers of which this actor may know; None where that could be any."""
        return self._grants.servers_in_sight(actor)

    def knows(self, actor: Actor, server: str) -> bool:
        """Whether this actor may know that there is such a server."""
        return self._grants.knows(actor, server)

    def tells(self, actor: Actor, server: str) -> bool:
        """Whether this actor is to hear how a server fares; not while nobody can know that."""
        try:
            return self._grants.knows(actor, server)
        except Unavailable:
            return False

    def require(self, call: Call, server: str) -> None:
        """Refuse what is neither about an offer nor about the link, unless it was granted."""
        judged = self._grants.judge(call.outbox.actor, call.method, server, "")
        if judged.effect is Effect.DENY:
            raise MalformedMessage(DENIED, ACCESS_DENIED)

    def find(self, call: Call, kind: Kind, key: str | None) -> Offer:
        """The offer that a public name, or a bare one that is unique, stands for to this actor."""
        key = _name(key)
        offer = self.catalog.named(kind, key)
        if offer is not None and self._admits(call, kind, offer, offer.name):
            return offer
        offer = self._bare(call.outbox.actor, kind, key)
        if offer is not None and self._admits(call, kind, offer, offer.name):
            return offer
        # From here on nothing depends on what there is.
        self._judge(call, kind, *self.catalog.place(key))
        said = without_secrets(key[:1000])
        raise MalformedMessage(f"no such name in {kind}: {said!r:.200}", NOT_FOUND[kind])

    def find_resource(self, call: Call, uri: str | None) -> Offer:
        """The resource at this URI, or the template that it fits, at a server that is in sight."""
        uri = _name(uri)
        for offer in self.catalog.resources_at(uri):
            if self._admits(call, Kind.RESOURCE, offer, uri):
                return offer
        self._judge(call, Kind.RESOURCE, "", uri)
        said = without_secrets(uri[:1000])
        raise MalformedMessage(f"no such resource: {said!r:.200}", RESOURCE_NOT_FOUND)

    def find_template(self, call: Call, uri: str | None) -> Offer:
        """The template of that very text, or what a URI leads to."""
        for offer in self.catalog.listed(Kind.TEMPLATE, _name(uri)):
            if self._admits(call, Kind.TEMPLATE, offer, offer.name):
                return offer
        return self.find_resource(call, uri)

    def reader_of(self, actor: Actor, server: str | None = None) -> Callable[[str], bool]:
        """Whether this actor may read what is at a URI: at one server, or wherever it is found."""

        def reads(uri: str) -> bool:
            if server is not None:
                return self._may_read(actor, server, uri)
            return any(
                self._may_read(actor, offer.server, uri) for offer in self.catalog.resources_at(uri)
            )

        return reads

    def _may_read(self, actor: Actor, server: str, uri: str) -> bool:
        try:
            judged = self._grants.judge(actor, mcp.READ_RESOURCE, server, uri)
        except Unavailable:
            return False
        return judged.effect is not Effect.DENY

    def find_tool(self, call: Call, server: str, name: str | None) -> Offer:
        """A server's tool by its own name; one that it never listed has no definition."""
        name = _name(name)
        self._judge(call, Kind.TOOL, server, name)
        offer = self.catalog.offered(server, Kind.TOOL, name)
        return Offer(public_name(server, name), server, name, UNLISTED) if offer is None else offer

    def demand(self, call: Call, kind: Kind, server: str, name: str | None) -> None:
        """Refuse what this actor may not do with that offer of a server's."""
        self._judge(call, kind, server, _name(name))

    def _sees(self, actor: Actor, kind: Kind, offer: Offer) -> bool:
        return self.sight_of(actor, kind).sees(offer)

    def ground(self, actor: Actor) -> StillHolds:
        """By what an actor sees what it sees now: for those who remember it."""
        return self._grants.ground(actor)

    def standing(self, offer: Offer) -> Standing | None:
        """How a tool stands; None where nobody looks after tools."""
        return None if self._tools is None else self._tools.standing(offer)

    def sight_of(self, actor: Actor, kind: Kind) -> Sight:
        """All that an actor sees of the catalog."""
        looks_at_tools = kind is Kind.TOOL and self._tools is not None
        return Sight(self._grants, actor, VERBS[kind], self._is_usable if looks_at_tools else None)

    def _is_usable(self, offer: Offer) -> bool:
        return self._tools is None or self._tools.standing(offer).refusal is None

    def _bare(self, actor: Actor, kind: Kind, key: str) -> Offer | None:
        """By its bare name, while only one server among those that this actor sees has it."""
        holders = self.catalog.holders(kind, key)
        seen = [offer for offer in holders if self._sees(actor, kind, offer)]
        if len(seen) > 1:
            named = " or ".join(sorted(offer.key for offer in seen)[:3])
            raise MalformedMessage(
                f"several servers have {key!r:.200}; say which, as {named}", NOT_FOUND[kind]
            )
        return seen[0] if seen else None

    def _admits(self, call: Call, kind: Kind, offer: Offer, name: str) -> bool:
        """Whether a call may go to an offer; if so, by what judgement is noted."""
        judged = self._grants.judge(call.outbox.actor, VERBS[kind], offer.server, name)
        if judged.effect is Effect.DENY:
            return False
        call.judged = judged
        return True

    def _judge(self, call: Call, kind: Kind, server: str, name: str) -> Judgement:
        judged = self._grants.judge(call.outbox.actor, VERBS[kind], server, name)
        if judged.effect is Effect.DENY:
            raise MalformedMessage(DENIED, ACCESS_DENIED)
        call.judged = judged
        return judged


def _name(said: str | None) -> str:
    """The name or URI that somebody asks for; no server lists a longer one."""
    if said is not None and len(said) > LONGEST_NAME:
        raise MalformedMessage(
            f"a name, or a URI, has at most {LONGEST_NAME} characters", INVALID_PARAMS
        )
    return said or ""


DENIED: Final = (
    "there is nothing of that name that you may use; an operator can grant it "
    "(`comity grants explain` says what decides)"
)
