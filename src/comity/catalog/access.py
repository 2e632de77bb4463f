"""Access to the catalog: which entries an actor sees, and which entry a name means to it."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import timedelta
from itertools import chain
from typing import Final, Protocol

from msgspec import Raw

from comity.catalog.catalog import MAX_NAME_LENGTH, Catalog, ServerEntryView
from comity.catalog.definitions import UNLISTED_DEFINITION
from comity.errors import (
    ACCESS_DENIED,
    INVALID_PARAMS,
    RESOURCE_NOT_FOUND,
    SERVER_NOT_READY,
    SERVER_STOPPED,
    TOOL_NOT_FOUND,
    MalformedMessage,
    Unavailable,
)
from comity.mcp import protocol
from comity.mcp.actors import LIST, READ, Actor
from comity.mcp.entries import CatalogEntry, EntryKind
from comity.mcp.refusals import Refusal
from comity.policy.grants import Decision, Effect, TargetSpecificity
from comity.policy.risk import Risk, TrustLevel
from comity.policy.snapshot import AllowAll, PolicyEngine, StillHolds
from comity.policy.visibility import ALL_VISIBLE, ServerVisibility
from comity.redaction.secrets import without_secrets
from comity.sessions.calls import Call, CallDenial

type IsUsable = Callable[[CatalogEntry], bool]


class ActorView:
    """The entries that an actor may use by one verb.

    With `is_usable`, the view also leaves out entries that no actor can use at the moment.
    """

    def __init__(
        self,
        policy_engine: PolicyEngine,
        actor: Actor,
        verb: str,
        is_usable: IsUsable | None = None,
        view: str = "",
    ) -> None:
        self._policy_engine = policy_engine
        self._actor = actor
        self._verb = verb
        self._is_usable = is_usable
        self._view = view

    @property
    def servers(self) -> Collection[str] | None:
        return self._policy_engine.visible_servers(self._actor)

    def server_visibility(self, server: str) -> ServerVisibility:
        """Return how much of a server the actor sees, whether or not the entries are usable now."""
        return self._policy_engine.server_visibility(self._actor, self._verb, server)

    def server_view(self, server: str) -> ServerEntryView | None:
        """Return the view of one server, or None if the actor sees nothing of it."""
        outlook = self.server_visibility(server)
        if not (outlook.is_visible_by_default or outlook.exceptions or outlook.may_become_visible):
            return None
        return _ActorEntryView(self, outlook)

    def sees_whole_server(self, server: str) -> bool:
        """Return whether the actor sees every entry of a server, so that no entry needs a check."""
        return self._is_usable is None and self.server_visibility(server) == ALL_VISIBLE

    def is_visible(self, entry: CatalogEntry) -> bool:
        judged = self._policy_engine.authorize(
            self._actor, self._verb, entry.server, entry.name, self._view
        )
        return judged.effect is not Effect.DENY and self.is_usable(entry)

    def is_usable(self, entry: CatalogEntry) -> bool:
        return self._is_usable is None or self._is_usable(entry)


class _ActorEntryView:
    def __init__(self, actor_view: ActorView, visibility: ServerVisibility) -> None:
        self._actor_view = actor_view
        self._visibility = visibility

    @property
    def only_names(self) -> Sequence[str] | None:
        outlook = self._visibility
        if outlook.is_visible_by_default or outlook.may_become_visible:
            return None
        return tuple(dict.fromkeys(chain.from_iterable(outlook.exceptions)))

    def is_visible(self, entry: CatalogEntry) -> bool:
        outlook = self._visibility
        if outlook.has_patterns or any(entry.name in names for names in outlook.exceptions):
            return self._actor_view.is_visible(entry)
        return outlook.is_visible_by_default and self._actor_view.is_usable(entry)


START_RETRY_AFTER: Final = timedelta(seconds=1)
"""The delay after which a server that starts may have listed its entries."""

VERB_BY_KIND: Final[Mapping[EntryKind, str]] = {
    EntryKind.TOOL: protocol.CALL_TOOL,
    EntryKind.PROMPT: protocol.GET_PROMPT,
    EntryKind.RESOURCE: protocol.READ_RESOURCE,
    EntryKind.TEMPLATE: protocol.READ_RESOURCE,
}
_NOUN_BY_KIND: Final = {
    EntryKind.TOOL: "tool",
    EntryKind.PROMPT: "prompt",
    EntryKind.RESOURCE: "resource",
    EntryKind.TEMPLATE: "resource template",
}
FAULT_BY_KIND: Final = {
    EntryKind.TOOL: TOOL_NOT_FOUND,
    EntryKind.PROMPT: INVALID_PARAMS,
    EntryKind.RESOURCE: RESOURCE_NOT_FOUND,
    EntryKind.TEMPLATE: RESOURCE_NOT_FOUND,
}

type Sees = Callable[[str, Mapping[str, Raw]], bool]
"""Decides by the name and the members of a list entry whether the actor is shown it."""


class ToolReviewStatus(Protocol):
    """The review result of one tool, as the call pipeline reads it."""

    @property
    def refusal(self) -> Refusal | None:
        """The reason why no actor can call the tool: a changed definition, a missing permission."""
        ...

    @property
    def must_be_confirmed(self) -> bool:
        """Whether a person must confirm each call, unless a grant names the tool itself."""
        ...

    @property
    def is_always_confirmed(self) -> bool:
        """Whether a person must confirm each call even if a grant names the tool itself."""
        ...

    @property
    def repeat_approval_reason(self) -> str | None:
        """The reason why one answer may not cover further calls; None if it may."""
        ...

    @property
    def cost(self) -> int:
        """How much of the caller's rate limit one call takes."""
        ...

    @property
    def risk(self) -> Risk: ...

    @property
    def digest(self) -> str:
        """The digest of the definition that was reviewed."""
        ...

    @property
    def quorum(self) -> int:
        """The number of people who must approve a call that needs approval."""
        ...


class ToolReviewSource(Protocol):
    """Provides the review of each tool."""

    def review_of(self, entry: CatalogEntry) -> ToolReviewStatus: ...

    def trust_of(self, server: str) -> TrustLevel:
        """Return the trust level of a server that is in force."""
        ...

    def risk_reasons_of(self, entry: CatalogEntry) -> Sequence[str]:
        """Return why a tool has its effective risk."""
        ...

    def with_listed_definition(
        self, catalog_entry: CatalogEntry, entry: Mapping[str, Raw]
    ) -> CatalogEntry:
        """Return the entry with the definition that its server sent in a list for a client."""
        ...


def needs_confirmation(decision: Decision | None, review: ToolReviewStatus | None) -> bool:
    """Return whether a person is asked about a call, unless an earlier answer covers it."""
    if review is None:
        return decision is not None and decision.effect is Effect.ASK
    if decision is None or decision.effect is Effect.ASK or review.is_always_confirmed:
        return True
    return review.must_be_confirmed and decision.level is not TargetSpecificity.OFFER


class CatalogAccess:
    """Decides which entries of the catalog an actor sees and may use."""

    def __init__(
        self,
        catalog: Catalog,
        policy_engine: PolicyEngine | None = None,
        tools: ToolReviewSource | None = None,
    ) -> None:
        self.catalog = catalog
        self._policy_engine: PolicyEngine = AllowAll() if policy_engine is None else policy_engine
        self._tools = tools

    def page(
        self, actor: Actor, kind: EntryKind, is_shown: Callable[[str], bool], cursor: str | None
    ) -> tuple[list[bytes], str | None]:
        """Return the definitions after the cursor that this actor may use, and the next cursor."""
        if isinstance(self._policy_engine, AllowAll) and self._tools is None:
            return self.catalog.page(kind, is_shown, cursor)
        return self.catalog.page(kind, is_shown, cursor, self.view_of(actor, kind))

    def list_tools(
        self, actor: Actor, is_shown: Callable[[str], bool], cursor: str | None
    ) -> tuple[list[bytes], str | None]:
        """Return the tools that an actor may call, or may list if a grant names `tools/list`.

        A grant for every verb does not count as such a grant. An actor with only that grant is not
        shown tools that a guardrail forbids.
        """
        if not self._has_exact_grant(actor, LIST, "", ""):
            return self.page(actor, EntryKind.TOOL, is_shown, cursor)
        return self.catalog.page(
            EntryKind.TOOL, is_shown, cursor, ActorView(self._policy_engine, actor, LIST)
        )

    def find_readable(self, call: Call, key: str | None) -> CatalogEntry:
        """Return a tool that this actor may call, or whose definition it may read.

        Raises MalformedMessage if there is no such tool for this actor.
        """
        offer = self.catalog.find_public(EntryKind.TOOL, _require_name(key))
        if offer is not None and any(
            self._has_exact_grant(call.client_stream.actor, verb, offer.server, offer.name)
            for verb in (READ, LIST)
        ):
            return offer
        return self.find(call, EntryKind.TOOL, key)

    def _has_exact_grant(self, actor: Actor, verb: str, server: str, name: str) -> bool:
        """Return whether a grant allows exactly this verb; one for every verb does not count."""
        judged = self._policy_engine.authorize(actor, verb, server, name)
        named = judged.grant is not None and judged.grant.verb == verb
        return named and judged.effect is Effect.ALLOW

    def list_filter(self, actor: Actor, kind: EntryKind, server: str) -> Sees | None:
        """Return the filter for a server's own list, or None if the actor sees every entry."""
        aside = self.catalog.quarantine_reasons(server, kind)
        seen = self.view_of(actor, kind)
        if not aside and seen.sees_whole_server(server):
            return None
        view = seen.server_view(server)

        def sees(name: str, entry: Mapping[str, Raw]) -> bool:
            if view is None or name in aside:
                return False
            offer = self.catalog.find_own(server, kind, name)
            if offer is None:
                offer = CatalogEntry(
                    self.catalog.public_name(server, name), server, name, UNLISTED_DEFINITION
                )
            if kind is EntryKind.TOOL and self._tools is not None:
                # The server may describe the tool differently to this client than it did to the
                # gateway.
                offer = self._tools.with_listed_definition(offer, entry)
            return view.is_visible(offer)

        return sees

    def usable_names(self, actor: Actor, kind: EntryKind, server: str) -> list[str]:
        """Return the names, as the server uses them, of the entries that this actor may use."""
        view = self.view_of(actor, kind).server_view(server)
        found = [] if view is None else self.catalog.visible_entries(server, kind, view)
        return [offer.name for offer in found]

    def count_granted(self, actor: Actor, kind: EntryKind, server: str) -> int:
        """Return how many entries of a server the actor is granted, whether usable now or not."""
        sight = ActorView(self._policy_engine, actor, VERB_BY_KIND[kind])
        if sight.sees_whole_server(server):
            return self.catalog.count(server, kind)
        view = sight.server_view(server)
        return 0 if view is None else len(self.catalog.visible_entries(server, kind, view))

    def is_listed(self, actor: Actor, kind: EntryKind, entry: CatalogEntry, view: str = "") -> bool:
        """Return whether this actor's list contains the entry, at the endpoint of a view if any."""
        return self.view_of(actor, kind, view).is_visible(entry)

    def visible_servers(self, actor: Actor) -> Collection[str] | None:
        """Return the servers that this actor may know of; None if it may know of any server."""
        return self._policy_engine.visible_servers(actor)

    def may_know_server(self, actor: Actor, server: str) -> bool:
        """Return whether this actor may know that the server exists."""
        return self._policy_engine.may_know_server(actor, server)

    def may_see_state(self, actor: Actor, server: str) -> bool:
        """Return whether this actor may learn the server's state.

        The answer is False while the grants are unavailable.
        """
        try:
            return self._policy_engine.may_know_server(actor, server)
        except Unavailable:
            return False

    def require_server(self, call: Call, server: str) -> None:
        """Check a request that is about neither a catalog entry nor the connection itself.

        Raises MalformedMessage with ACCESS_DENIED if no grant allows it.
        """
        judged = self._policy_engine.authorize(call.client_stream.actor, call.method, server, "")
        if judged.effect is Effect.DENY:
            raise MalformedMessage(NOT_VISIBLE_TEXT, ACCESS_DENIED)

    def require_tool(self, call: Call, server: str, tool: str) -> None:
        """Check a request about a task, which needs the grant on the tool that began it.

        Raises MalformedMessage with ACCESS_DENIED.
        """
        actor = call.client_stream.actor
        judged = self._policy_engine.authorize(actor, protocol.CALL_TOOL, server, tool, call.view)
        if judged.effect is Effect.DENY:
            raise MalformedMessage(NOT_VISIBLE_TEXT, ACCESS_DENIED)

    def may_notify(self, actor: Actor, method: str, server: str) -> bool:
        """Return whether a grant lets an actor send a notification to a server.

        The answer is False while the grants are unavailable, and where a person must be asked.
        """
        try:
            judged = self._policy_engine.authorize(actor, method, server, "")
        except Unavailable:
            return False
        return judged.effect is Effect.ALLOW

    def find(self, call: Call, kind: EntryKind, key: str | None) -> CatalogEntry:
        """Return the entry for a public name, or for a bare name that only one visible server has.

        A name may also be written with the id of the server, as `mind.cerebras__think`. Raises
        MalformedMessage if the name is unknown, ambiguous or denied.
        """
        key, actor = _require_name(key), call.client_stream.actor
        offer = self.catalog.find_public(kind, key)
        if offer is not None and self._may_use(call, kind, offer, offer.name):
            return offer
        offer = self._find_bare_name(actor, kind, key) or self.catalog.find_written(kind, key)
        if offer is not None and self._may_use(call, kind, offer, offer.name):
            return offer
        self._refuse_shared_name(actor, kind, key)
        # From here on the answer must not depend on which entries exist, or it would reveal them.
        self._note_hidden_denial(call, kind, key)
        server, name = self.catalog.split_public_name(key)
        if not self.catalog.has_server(server) and server not in self.catalog.starting_servers:
            self.require_started(actor)
        if server:
            self._authorize(call, kind, server, name)
        else:
            self._require_some_server(call, kind, self.catalog.find_bare(kind, name), name)
        if server in self.catalog.starting_servers:
            raise not_ready(server)
        self._refuse_if_failed(server)
        raise _unknown_name(kind, key)

    def _is_known_to_lack(self, actor: Actor, kind: EntryKind, server: str, name: str) -> bool:
        """Return whether a server that the actor may know of has no entry of this name.

        Only then is the actor told so. Of a server that it may not know of, the answer must not
        depend on which entries exist, or on whether the server does. A server may serve resources
        that it does not list.
        """
        return (
            kind in (EntryKind.TOOL, EntryKind.PROMPT)
            and self.catalog.has_server(server)
            and not self.catalog.has_entry(server, kind, name)
            and self._policy_engine.may_know_server(actor, server)
        )

    def _require_some_server(
        self, call: Call, kind: EntryKind, holders: Iterable[CatalogEntry], name: str
    ) -> None:
        """Raise MalformedMessage with ACCESS_DENIED unless the actor may be told: no such name.

        It may if it knows of some server, and of none that has the name. The answer is then the
        same whether a hidden server has the name or not.
        """
        actor = call.client_stream.actor
        servers = self._policy_engine.visible_servers(actor)
        may_know = self._policy_engine.may_know_server
        if servers is None or any(may_know(actor, each) for each in servers):
            hidden = not any(may_know(actor, each.server) for each in holders)
            if hidden:
                return
        self._authorize(call, kind, "", name)

    def _refuse_shared_name(self, actor: Actor, kind: EntryKind, key: str) -> None:
        """Tell the right names of entries whose servers share the prefix of this name."""
        sharing = self.catalog.find_sharing(kind, key)
        seen = [each.key for each in sharing if self._is_visible(actor, kind, each)]
        if seen:
            raise MalformedMessage(
                f"several servers have ids like that in {key!r:.200}; use {' or '.join(seen[:3])}",
                FAULT_BY_KIND[kind],
            )

    def find_in_view(
        self, call: Call, kind: EntryKind, entry: CatalogEntry | None, name: str | None
    ) -> CatalogEntry:
        """Return the entry that a name means in a view, if the actor may use it there.

        Raises MalformedMessage otherwise. An unknown name and a denied one get the same answer.
        """
        if entry is not None and self._may_use(call, kind, entry, entry.name):
            return entry
        if entry is None:
            self._refuse_unless_known(call.client_stream.actor)
        else:
            self._note_denial(call, kind, entry.server, entry.name)
        raise _unknown_name(kind, name or "")

    def find_resource_in_view(
        self, call: Call, uri: str | None, serves: Callable[[str, str], bool]
    ) -> CatalogEntry:
        """Return the resource or the template at a URI, if its server `serves` the URI in a view.

        Raises MalformedMessage if there is none that the actor may read there.
        """
        uri = _require_name(uri)
        templates = self.catalog.find_by_name(EntryKind.TEMPLATE, uri)
        for offer in chain(templates, self.catalog.find_resources(uri)):
            if serves(offer.server, uri) and self._may_use(call, EntryKind.RESOURCE, offer, uri):
                return offer
        self._refuse_unless_known(call.client_stream.actor)
        said = without_secrets(uri[:1000])
        raise MalformedMessage(f"no such resource: {said!r:.200}", RESOURCE_NOT_FOUND)

    def find_resource(self, call: Call, uri: str | None) -> CatalogEntry:
        """Return the resource at this URI, or the template that it fits, if the actor may read it.

        Raises MalformedMessage otherwise.
        """
        uri = _require_name(uri)
        for offer in self.catalog.find_resources(uri):
            if self._may_use(call, EntryKind.RESOURCE, offer, uri):
                return offer
        self.require_started(call.client_stream.actor)
        holders = self.catalog.find_resources(uri)
        self._require_some_server(call, EntryKind.RESOURCE, holders, uri)
        said = without_secrets(uri[:1000])
        raise MalformedMessage(f"no such resource: {said!r:.200}", RESOURCE_NOT_FOUND)

    def find_template(self, call: Call, uri: str | None) -> CatalogEntry:
        """Return the template with exactly this text, or the entry that the URI leads to."""
        for offer in self.catalog.find_by_name(EntryKind.TEMPLATE, _require_name(uri)):
            if self._may_use(call, EntryKind.TEMPLATE, offer, offer.name):
                return offer
        return self.find_resource(call, uri)

    def uri_filter(self, actor: Actor, server: str | None = None) -> Callable[[str], bool]:
        """Return a check for URIs: whether this actor may read them, at one server or at any."""

        def reads(uri: str) -> bool:
            if server is not None:
                return self.may_read(actor, server, uri)
            return any(
                self.may_read(actor, offer.server, uri)
                for offer in self.catalog.find_resources(uri)
            )

        return reads

    def may_read(self, actor: Actor, server: str, uri: str, view: str = "") -> bool:
        """Return whether an actor may read a resource of a server; False if that is unknown."""
        try:
            judged = self._policy_engine.authorize(actor, protocol.READ_RESOURCE, server, uri, view)
        except Unavailable:
            return False
        return judged.effect is not Effect.DENY

    def find_tool(self, call: Call, server: str, name: str | None) -> CatalogEntry:
        """Return a server's tool by its own name; an unlisted tool has an empty definition.

        Raises MalformedMessage if the actor may not call it.
        """
        name = _require_name(name)
        self._authorize(call, EntryKind.TOOL, server, name)
        offer = self.catalog.find_own(server, EntryKind.TOOL, name)
        return (
            CatalogEntry(self.catalog.public_name(server, name), server, name, UNLISTED_DEFINITION)
            if offer is None
            else offer
        )

    def require_entry(self, call: Call, kind: EntryKind, server: str, name: str | None) -> None:
        """Raise MalformedMessage if this actor may not use that entry of a server."""
        self._authorize(call, kind, server, _require_name(name))

    def _is_visible(self, actor: Actor, kind: EntryKind, entry: CatalogEntry) -> bool:
        return self.view_of(actor, kind).is_visible(entry)

    def visibility_check(self, actor: Actor) -> StillHolds:
        """Return a check whether the grants behind the actor's present view still hold.

        Caches of that view use it.
        """
        return self._policy_engine.visibility_check(actor)

    def review_of(self, entry: CatalogEntry) -> ToolReviewStatus | None:
        """Return the review of a tool; None if tools are not reviewed."""
        return None if self._tools is None else self._tools.review_of(entry)

    def trust_of(self, server: str) -> TrustLevel:
        """Return the trust level of a server that is in force."""
        return TrustLevel.STANDARD if self._tools is None else self._tools.trust_of(server)

    def view_of(self, actor: Actor, kind: EntryKind, view: str = "") -> ActorView:
        """Return what the actor sees of all entries of one kind."""
        looks_at_tools = kind is EntryKind.TOOL and self._tools is not None
        return ActorView(
            self._policy_engine,
            actor,
            VERB_BY_KIND[kind],
            self._is_usable if looks_at_tools else None,
            view,
        )

    def _is_usable(self, entry: CatalogEntry) -> bool:
        return self._tools is None or self._tools.review_of(entry).refusal is None

    def _find_bare_name(self, actor: Actor, kind: EntryKind, key: str) -> CatalogEntry | None:
        """Return the entry with this bare name; raise MalformedMessage if several servers have it.

        Only servers that the actor sees count.
        """
        holders = self.catalog.find_bare(kind, key)
        seen = [offer for offer in holders if self._is_visible(actor, kind, offer)]
        if len(seen) > 1:
            named = " or ".join(sorted(offer.key for offer in seen)[:3])
            raise MalformedMessage(
                f"several servers have {key!r:.200}; name one of them, such as {named}",
                FAULT_BY_KIND[kind],
            )
        return seen[0] if seen else None

    def _refuse_if_failed(self, server: str) -> None:
        """Raise Unavailable for a server that failed before anybody knew its entries."""
        reason = self.catalog.failed_servers.get(server)
        if reason is not None:
            raise Unavailable(f"server {server!r} has failed: {reason}", SERVER_STOPPED)

    def require_started(self, actor: Actor) -> None:
        """Raise Unavailable while a server that the actor may know of has listed nothing yet.

        The wanted entry may be one of it.
        """
        for server in self.catalog.starting_servers:
            if self._policy_engine.may_know_server(actor, server):
                raise not_ready(server)

    def _refuse_unless_known(self, actor: Actor) -> None:
        """Raise Unavailable while it is unknown what a view has, or what the actor may use of it.

        A name that the view lacks must not be told from one whose grant is unknown.
        """
        self._policy_engine.require_fresh()
        self.require_started(actor)

    def _may_use(self, call: Call, kind: EntryKind, entry: CatalogEntry, name: str) -> bool:
        """Return whether a call may go to an entry, and note the decision on the call if so."""
        judged = self._policy_engine.authorize(
            call.client_stream.actor, VERB_BY_KIND[kind], entry.server, name, call.view
        )
        if judged.effect is Effect.DENY:
            return False
        call.decision = judged
        return True

    def _authorize(self, call: Call, kind: EntryKind, server: str, name: str) -> Decision:
        judged = self._policy_engine.authorize(
            call.client_stream.actor, VERB_BY_KIND[kind], server, name
        )
        if judged.effect is Effect.DENY:
            if self._is_known_to_lack(call.client_stream.actor, kind, server, name):
                raise _unknown_name(kind, name)
            if call.denial is None:
                self._note_denial(call, kind, server, name)
            raise MalformedMessage(NOT_VISIBLE_TEXT, ACCESS_DENIED)
        call.decision = judged
        return judged

    def _note_hidden_denial(self, call: Call, kind: EntryKind, key: str) -> None:
        """Note by what a call is denied, if its name means one entry that it may not use."""
        entry = self.catalog.find_public(kind, key)
        holders = self.catalog.find_bare(kind, key) if entry is None else [entry]
        if len(holders) == 1:
            self._note_denial(call, kind, holders[0].server, holders[0].name)

    def _note_denial(self, call: Call, kind: EntryKind, server: str, name: str) -> None:
        """Note for operators by what a call is denied. The caller learns nothing of it."""
        judged = self._policy_engine.authorize(
            call.client_stream.actor, VERB_BY_KIND[kind], server, name, call.view
        )
        is_listed = self.catalog.find_own(server, kind, name) is not None
        call.denial = CallDenial(judged, server, name, is_listed)


def _unknown_name(kind: EntryKind, name: str) -> MalformedMessage:
    said = without_secrets(name[:1000])
    return MalformedMessage(f"unknown {_NOUN_BY_KIND[kind]} {said!r:.200}", FAULT_BY_KIND[kind])


def not_ready(server: str) -> Unavailable:
    """Return why no entry of a server that starts can be used yet, and when to retry."""
    reason = f"server {server!r} is starting, so its entries are not known yet"
    return Unavailable(reason, SERVER_NOT_READY, START_RETRY_AFTER)


def _require_name(name: str | None) -> str:
    """Return the requested name or URI.

    Raises MalformedMessage if it is longer than any listed one.
    """
    if name is not None and len(name) > MAX_NAME_LENGTH:
        raise MalformedMessage(
            f"a name, or a URI, has at most {MAX_NAME_LENGTH} characters", INVALID_PARAMS
        )
    return name or ""


NOT_VISIBLE_TEXT: Final = (
    "there is nothing with this name that you may use; check the name, or have an operator grant "
    "it (see `comity grants explain`)"
)
