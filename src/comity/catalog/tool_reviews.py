"""The review of every tool: accepted definitions, changes and risk."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import islice
from typing import Final

from msgspec import Raw

from comity.audit.events import AuditType
from comity.audit.log import MAX_NAMES_IN_EVENT, AuditLog
from comity.catalog.catalog import Catalog
from comity.catalog.definitions import (
    LOCK_FILE,
    AcceptedDefinition,
    AcceptedTool,
    AcceptedToolStore,
    DefinitionAnalysis,
    DefinitionDifference,
    DefinitionSuspicion,
    LookalikeIndex,
    ReviewState,
    SuspicionKind,
    examine_definition,
    has_same_meaning,
    list_differences,
    never_reusable_reason,
    refusal_for,
    state_of,
)
from comity.errors import MalformedMessage, Unavailable
from comity.mcp import jsonrpc
from comity.mcp.actors import GATEWAY
from comity.mcp.entries import CatalogEntry, EntryKind
from comity.mcp.refusals import Refusal
from comity.policy.risk import (
    SERVER_SUBJECT_PREFIX,
    DefinitionPolicy,
    FallbackValidatorPolicy,
    Risk,
    ServerPolicy,
    SuspicionPolicy,
    ToolPolicy,
    TrustLevel,
    effective_risk,
    effective_trust,
    is_always_confirmed,
    must_be_confirmed,
    risk_reasons,
)
from comity.policy.server_permissions import PermissionService, ServerPermissions
from comity.policy.snapshot import WallClock
from comity.telemetry.logging import TroubleLog
from comity.toolkit.background import BackgroundTasks, LoopYielder
from comity.validation.arguments import ArgumentKind
from comity.validation.rules import UNRULED, ValidationRules

log = logging.getLogger(__name__)

WRITE_BATCH_SIZE: Final = 200
"""The number of records that one write to the store holds."""


class AcceptedDefinitions:
    """The accepted tool definitions of all servers, cached in memory and written to the store."""

    def __init__(self, records: AcceptedToolStore) -> None:
        self._records = records
        self._servers: dict[str, dict[str, AcceptedDefinition]] = {}
        self._unwritten: dict[tuple[str, str], AcceptedTool] = {}
        self._background_tasks = BackgroundTasks("the pins")
        self._writing = asyncio.Lock()

    def is_known(self, server: str) -> bool:
        """Return whether the accepted definitions of this server are loaded."""
        return server in self._servers

    def get(self, server: str, tool: str) -> AcceptedDefinition | None:
        return self._servers.get(server, {}).get(tool)

    def definitions_of(self, server: str) -> Mapping[str, AcceptedDefinition]:
        return self._servers.get(server, {})

    async def load(self, server: str, *, reload: bool = False) -> None:
        """Load the accepted definitions of a server, unless they are loaded. Raises Unavailable."""
        if server in self._servers and not reload:
            return
        found: dict[str, AcceptedDefinition] = {}
        for number, pin in enumerate(await self._records.list_for(server)):
            found[pin.tool] = AcceptedDefinition(pin.digest, pin.accepted_by, pin.accepted_at)
            if number % WRITE_BATCH_SIZE == 0:
                await asyncio.sleep(0)
        unwritten = [pin for (owner, _), pin in self._unwritten.items() if owner == server]
        for pin in unwritten:
            # Accepted on this node, and not in the store yet.
            found.setdefault(
                pin.tool, AcceptedDefinition(pin.digest, pin.accepted_by, pin.accepted_at)
            )
        self._servers[server] = found

    def accept(self, tool: AcceptedTool) -> None:
        """Accept a definition at once, and write it to the store in the background."""
        accepted = AcceptedDefinition(tool.digest, tool.accepted_by, tool.accepted_at)
        self._servers.setdefault(tool.server, {})[tool.tool] = accepted
        if not self._unwritten:
            self._background_tasks.start(self._write_soon())
        self._unwritten[tool.server, tool.tool] = tool

    async def accept_durably(self, tools: Iterable[AcceptedTool]) -> None:
        """Write definitions to the store, then accept them.

        Raises Unavailable or MalformedMessage if the store does not take them.
        """
        accepted = list(tools)
        await self._records.put(*accepted)
        for pin in accepted:
            self._unwritten.pop((pin.server, pin.tool), None)
            known = AcceptedDefinition(pin.digest, pin.accepted_by, pin.accepted_at)
            self._servers.setdefault(pin.server, {})[pin.tool] = known

    async def definition(self, server: str, tool: str) -> bytes | None:
        """Return the accepted canonical definition of a tool, or None. Raises Unavailable."""
        unwritten = self._unwritten.get((server, tool))
        if unwritten is not None:
            return unwritten.definition
        pin = await self._records.get(server, tool)
        return None if pin is None else pin.definition

    def retry_writes(self) -> None:
        """Try again to write definitions that the store did not take."""
        if self._unwritten and not len(self._background_tasks):
            self._background_tasks.start(self._write_soon())

    async def wait_until_written(self) -> None:
        await self._background_tasks.finish()

    def stop(self) -> None:
        self._background_tasks.cancel()

    async def _write_soon(self) -> None:
        # Definitions accepted in the same turn of the event loop share one write.
        await asyncio.sleep(0)
        async with self._writing:
            await self._write()

    async def _write(self) -> None:
        while self._unwritten:
            some = dict(islice(self._unwritten.items(), WRITE_BATCH_SIZE))
            try:
                await self._records.put(*some.values())
            except Unavailable as error:
                log.warning("Accepted definitions could not be stored yet: %s", error)
                return
            except MalformedMessage as error:
                # No store takes this record; the tool counts as seen for the first time after a
                # restart.
                log.warning("An accepted definition cannot be stored: %s", error)
            for place, pin in some.items():
                # A newer definition may have been accepted during the write.
                if self._unwritten.get(place) is pin:
                    del self._unwritten[place]


ANALYSIS_COST: Final = 2_000
"""The least cost of one analysis, counted as bytes on top of the definition."""

COMPARISON_COST: Final = 2_000
MAX_COMPARED_BYTES: Final = 1_000_000
"""Bytes that are compared between two calls of `look`: about 100 ms.

Each comparison counts ONE_COMPARISON bytes more.
"""

type PolicyOf = Callable[[str], ServerPolicy]


@dataclass(frozen=True, slots=True)
class ToolReview:
    """The review of one definition of a tool.

    Validators in `validators` must accept the arguments; those in `advisory_validators` only
    give an opinion.
    """

    state: ReviewState
    refusal: Refusal | None
    must_be_confirmed: bool
    is_always_confirmed: bool
    cost: int
    risk: Risk
    permissions: tuple[str, ...]
    validators: tuple[str, ...]
    advisory_validators: tuple[str, ...]
    rules: ValidationRules
    findings: tuple[DefinitionSuspicion, ...]
    digest: str
    quorum: int = 1
    # Why one answer may not cover further calls; None if it may.
    repeat_approval_reason: str | None = "it has not been reviewed"


@dataclass(frozen=True, slots=True)
class _ReviewEntry:
    definition: bytes
    generation: int
    review: ToolReview


class ToolReviewService:
    """Reviews all tools, and again when definitions, permissions or policies change."""

    def __init__(
        self,
        catalog: Catalog,
        policy_of: PolicyOf,
        permission_service: PermissionService,
        accepted_definitions: AcceptedDefinitions,
        clock: WallClock = lambda: datetime.now(UTC),
        *,
        audit_log: AuditLog | None = None,
    ) -> None:
        self.permission_service = permission_service
        self.accepted_definitions = accepted_definitions
        self._catalog = catalog
        self._policy_of = policy_of
        self._clock = clock
        self._analysis_by_tool: dict[str, dict[str, DefinitionAnalysis]] = {}
        self._review_by_tool: dict[tuple[str, str], _ReviewEntry] = {}
        # Definitions that a server sent to a client in another form than to the gateway, with equal
        # meaning.
        self._same_definitions: dict[tuple[str, str], tuple[bytes, bytes]] = {}
        self._compared_bytes = 0
        self._lookalikes = LookalikeIndex()
        # `review_list` and `_reload` change the same tables between awaits: only one runs at a
        # time.
        self._review_lock = asyncio.Lock()
        self._background_tasks = BackgroundTasks("the care for tools")
        # The log for changed and accepted definitions.
        self.audit_log = audit_log
        # Called with a server whose reviews may have changed without a change of its list.
        self._watchers: list[Callable[[str], None]] = []
        # Why tools of a server cannot be called until a person accepts them, for servers whose
        # reviews have not changed since; and how often reviews of any server changed.
        self._unaccepted_by_server: dict[str, Mapping[str, str]] = {}
        self._review_changes = 0
        # The digest of each changed definition that the audit log already has.
        self._recorded_digests: dict[tuple[str, str], str] = {}
        self._first_seen_tools: list[AcceptedTool] = []
        self._trouble_log = TroubleLog(
            log,
            "Cannot load the accepted tool definitions of server %r and others: %s",
            "The accepted tool definitions are loaded.",
        )
        catalog.watch(self._on_catalog_changed)
        permission_service.watch(lambda server: self._catalog.announce(server, EntryKind.TOOL))

    def watch(self, watcher: Callable[[str], None]) -> None:
        """Call `watcher` with each server whose reviews may have changed."""
        self._watchers.append(watcher)

    def review_of(self, entry: CatalogEntry) -> ToolReview:
        """Return the review of exactly this definition."""
        permit = self.permission_service.permissions_of(entry.server)
        held = self._review_by_tool.get((entry.server, entry.name))
        if (
            held is not None
            and held.generation == permit.generation
            and (held.definition is entry.definition or held.definition == entry.definition)
        ):
            return held.review
        return self._review(entry, permit)

    def rules_of(self, entry: CatalogEntry) -> ValidationRules:
        """Return the validation rules of a tool; the same object until its review changes."""
        return self.review_of(entry).rules

    def with_listed_definition(
        self, catalog_entry: CatalogEntry, entry: Mapping[str, Raw]
    ) -> CatalogEntry:
        """Return the entry as its server described it to a client.

        The result is the known entry if both descriptions mean the same.
        """
        shown = jsonrpc.to_json({**entry, "name": catalog_entry.key})
        if shown == catalog_entry.definition:
            return catalog_entry
        place = (catalog_entry.server, catalog_entry.name)
        if self._same_definitions.get(place) == (catalog_entry.definition, shown):
            return catalog_entry
        self._compared_bytes += len(shown) + COMPARISON_COST
        if self._compared_bytes > MAX_COMPARED_BYTES:
            # Hide the tool until the next `look`: a server must not keep the gateway busy with
            # comparisons.
            return replace(catalog_entry, definition=b"")
        if not has_same_meaning(catalog_entry.definition, shown, catalog_entry.name):
            return replace(catalog_entry, definition=shown)
        self._same_definitions[place] = (catalog_entry.definition, shown)
        return catalog_entry

    async def review_list(self, server: str, entries: Sequence[CatalogEntry]) -> None:
        """Review a server's list before any client is shown it.

        The method yields to the event loop, since the list may be long.
        """
        async with self._review_lock:
            await self._load(server)
            before, seen = self._analysis_by_tool.get(server, {}), dict[str, DefinitionAnalysis]()
            breath = LoopYielder()
            for offer in entries:
                await breath.count(ANALYSIS_COST + len(offer.definition))
                old = before.get(offer.name)
                is_old = old is not None and old.definition == offer.definition
                seen[offer.name] = old if old is not None and is_old else self._examine(offer)
            self._analysis_by_tool[server] = seen
            await self._update_names(
                server, before.keys() - seen.keys(), seen.keys() - before.keys()
            )
            self.permission_service.add_tool_permissions(
                server, (name for each in seen.values() for name in each.permissions or ())
            )
            for offer in entries:
                await breath.count(ANALYSIS_COST + len(offer.definition))
                # This accepts definitions that are seen for the first time, if the policy allows
                # it.
                self.review_of(offer)
                seen[offer.name].fresh.clear()
            self._record_changes(server, entries)

    async def accept(self, server: str, digests: Mapping[str, str], by: str) -> list[str]:
        """Accept tools whose present digest is the given one; return their names.

        Raises Unavailable or MalformedMessage if the store does not take them.
        """
        pins: list[AcceptedTool] = []
        for name, digest in digests.items():
            offer = self._catalog.find_own(server, EntryKind.TOOL, name)
            written = b"" if offer is None else self._examine(offer).canonical_bytes()
            if offer is not None and digest == self.review_of(offer).digest and written:
                pins.append(AcceptedTool(server, name, digest, written, by, self._clock()))
        await self.accepted_definitions.accept_durably(pins)
        if self.audit_log is not None and pins:
            details = _describe_tools([(pin.tool, pin.digest) for pin in pins])
            self.audit_log.record(AuditType.DEFINITION_ACCEPTED, by, server=server, details=details)
        self.refresh(server)
        return [pin.tool for pin in pins]

    def trust_of(self, server: str) -> TrustLevel:
        """Return the effective trust level of a server."""
        claimed = self.permission_service.permissions_of(server).trust_level
        return effective_trust(self._policy_of(server).trust, claimed)

    def risk_reasons_of(self, entry: CatalogEntry) -> list[str]:
        """Return why a tool has its effective risk."""
        permissions = self.permission_service.permissions_of(entry.server)
        policy, seen = self._policy_of(entry.server), self._examine(entry)
        trust, tool = self.trust_of(entry.server), policy.tool_policy(entry.name)
        needs = seen.required_permissions(permissions.declared)
        return risk_reasons(policy, tool, trust, seen.label, seen.hints, needs)

    async def differences_of(self, entry: CatalogEntry) -> list[DefinitionDifference]:
        """Return how a definition differs from the accepted one."""
        before = await self.accepted_definitions.definition(entry.server, entry.name)
        after = self.canonical_definition_of(entry)
        return [] if before is None or not after else list_differences(before, after)

    def canonical_definition_of(self, entry: CatalogEntry) -> bytes:
        """Return the canonical definition of a tool; empty if it cannot be read."""
        return self._examine(entry).canonical_bytes()

    async def withheld_definitions(self, server: str) -> Mapping[str, str]:
        """Return why clients do not see tools of a server, for each definition in quarantine.

        Those are definitions that no person has accepted, and those that Comity cannot list. The
        method yields to the event loop, since a server may have many tools.
        """
        unlisted = self._catalog.quarantine_reasons(server)
        known = self._unaccepted_by_server.get(server)
        return {**unlisted, **(await self._find_unaccepted(server) if known is None else known)}

    async def _find_unaccepted(self, server: str) -> Mapping[str, str]:
        found: dict[str, str] = {}
        breath, number = LoopYielder(), self._review_changes
        for entry in self.entries_of(server):
            await breath.count(ANALYSIS_COST)
            review = self.review_of(entry)
            if review.state is not ReviewState.ACCEPTED and review.refusal is not None:
                found[entry.name] = review.refusal.reason
        if number == self._review_changes:
            # Nothing changed meanwhile, so this holds until something does.
            self._unaccepted_by_server[server] = found
        return found

    def find_entry(self, server: str, tool: str) -> CatalogEntry | None:
        """Return a tool by its server's own name, if the server lists it."""
        return self._catalog.find_own(server, EntryKind.TOOL, tool)

    def entries_of(self, server: str) -> Iterable[CatalogEntry]:
        """Yield all tools that a server lists, also those hidden from clients."""
        for name in self._catalog.names(server, EntryKind.TOOL):
            offer = self.find_entry(server, name)
            if offer is not None:
                yield offer

    def refresh(self, server: str) -> None:
        """Review all tools of a server again after its policy or accepted definitions changed."""
        for name in self._analysis_by_tool.get(server, ()):
            self._review_by_tool.pop((server, name), None)
        self._catalog.announce(server, EntryKind.TOOL)

    def on_accepted_changed(self, server: str) -> None:
        """Reload the accepted definitions of a server, or of all servers if the name is empty.

        Another node or an operator changed them in the store.
        """
        for name in [server] if server else list(self._analysis_by_tool):
            self._background_tasks.start(self._reload(name))

    def check(self) -> None:
        """Retry failed loads and writes, and check for expired permissions. Runs periodically."""
        self._compared_bytes = 0
        self.permission_service.renew_due_decisions()
        self.accepted_definitions.retry_writes()
        for server in self._analysis_by_tool:
            if not self.accepted_definitions.is_known(server) and not len(self._background_tasks):
                self._background_tasks.start(self._reload(server))

    async def wait_until_idle(self) -> None:
        """Wait until all background tasks are done."""
        await self._background_tasks.finish()
        await self.permission_service.wait_until_told()
        await self.accepted_definitions.wait_until_written()

    def stop(self) -> None:
        for each in (self._background_tasks, self.permission_service, self.accepted_definitions):
            each.cancel() if isinstance(each, BackgroundTasks) else each.stop()

    async def _load(self, server: str, *, reload: bool = False) -> None:
        try:
            await self.accepted_definitions.load(server, reload=reload)
        except Unavailable as error:
            self._trouble_log.begin(server, error)
        else:
            self._trouble_log.end()

    async def _reload(self, server: str) -> None:
        async with self._review_lock:
            before = dict(self.accepted_definitions.definitions_of(server))
            await self._load(server, reload=True)
            if dict(self.accepted_definitions.definitions_of(server)) != before or not before:
                self.refresh(server)

    async def _update_names(self, server: str, removed: Iterable[str], new: Iterable[str]) -> None:
        """Update the index of names, and discard the reviews of names that look alike."""
        now = self._clock().timestamp()
        breath = LoopYielder()
        for name in removed:
            await breath.count(ANALYSIS_COST)
            self._review_by_tool.pop((server, name), None)
            self._same_definitions.pop((server, name), None)
            self._recorded_digests.pop((server, name), None)
            self._lookalikes.remove(server, name)
            self._discard_lookalikes(name)
        for name in new:
            await breath.count(ANALYSIS_COST)
            accepted = self.accepted_definitions.get(server, name)
            since = accepted.at.timestamp() if accepted is not None and accepted.at else now
            self._review_by_tool.pop((server, name), None)
            self._lookalikes.add(server, name, since)
            self._discard_lookalikes(name)

    def _discard_lookalikes(self, name: str) -> None:
        for place in self._lookalikes.find_lookalikes(name):
            # A tool is never mistaken for one of the same name, which thousands of servers may
            # share. Only a strict policy finds fault with a name that two servers use.
            is_strict = self._policy_of(place[0]).suspicious is SuspicionPolicy.STRICT
            if place[1] == name and not is_strict:
                continue
            if self._review_by_tool.pop(place, None) is None:
                # Nothing was derived from its review since the watchers were told of it.
                continue
            self._forget_unaccepted(place[0])
            for told in self._watchers:
                told(place[0])

    def _on_catalog_changed(self, server: str, kind: EntryKind) -> None:
        """Forget the names of a server that lists no tools any more."""
        if kind is not EntryKind.TOOL:
            return
        self._forget_unaccepted(server)
        if self._catalog.count(server, kind):
            return
        for name in self._analysis_by_tool.pop(server, {}):
            self._review_by_tool.pop((server, name), None)
            self._same_definitions.pop((server, name), None)
            self._lookalikes.remove(server, name)
            self._discard_lookalikes(name)

    def _forget_unaccepted(self, server: str) -> None:
        self._unaccepted_by_server.pop(server, None)
        self._review_changes += 1

    def _examine(self, entry: CatalogEntry) -> DefinitionAnalysis:
        known = self._analysis_by_tool.get(entry.server, {}).get(entry.name)
        if known is not None and known.definition == entry.definition:
            return known
        return examine_definition(entry.definition, entry.name)

    def _review(self, entry: CatalogEntry, permissions: ServerPermissions) -> ToolReview:
        policy = self._policy_of(entry.server)
        tool, seen = policy.tool_policy(entry.name), self._examine(entry)
        findings = self._findings(entry, seen, policy)
        known = self.accepted_definitions.is_known(entry.server)
        stored = accepted = self.accepted_definitions.get(entry.server, entry.name)
        locked = policy.locked_tools
        if locked is not None and entry.name in locked:
            accepted = AcceptedDefinition(locked[entry.name], LOCK_FILE, None)
        is_outside_lock = locked is not None and entry.name not in locked
        state = state_of(
            seen, policy, tool, findings, accepted, known, is_outside_lock=is_outside_lock
        )
        if stored is None and state is ReviewState.ACCEPTED and seen.digest:
            self._accept_first_seen(entry, seen, policy)
        needs = seen.required_permissions(permissions.declared)
        missing = permissions.missing(needs)
        trust = effective_trust(policy.trust, permissions.trust_level)
        risk = effective_risk(policy, tool, trust, seen.label, seen.hints, needs)
        enforced, advised = _required_validators(seen, policy, tool)
        always = is_always_confirmed(policy, tool, seen.label)
        standing = ToolReview(
            state,
            refusal_for(
                state, entry.server, entry.name, missing, findings, is_locked=locked is not None
            ),
            must_be_confirmed(policy, tool, risk),
            always,
            policy.cost_of(tool, risk),
            risk,
            needs,
            enforced,
            advised,
            _validation_rules(seen, tool, enforced, advised),
            findings,
            seen.digest,
            tool.approvals,
            never_reusable_reason(
                risk, seen, needs, is_always_confirmed=always or tool.approvals > 1
            ),
        )
        if entry.name in self._analysis_by_tool.get(entry.server, ()):
            # Only listed tools are cached: the number of unlisted names is unbounded.
            key = (entry.server, entry.name)
            self._review_by_tool[key] = _ReviewEntry(
                entry.definition, permissions.generation, standing
            )
        return standing

    def _accept_first_seen(
        self, entry: CatalogEntry, seen: DefinitionAnalysis, policy: ServerPolicy
    ) -> None:
        if policy.definitions is DefinitionPolicy.FIRST_USE:
            now, written = self._clock(), seen.canonical_bytes()
            pin = AcceptedTool(entry.server, entry.name, seen.digest, written, GATEWAY, now)
            self.accepted_definitions.accept(pin)
            self._first_seen_tools.append(pin)

    def _record_changes(self, server: str, entries: Iterable[CatalogEntry]) -> None:
        """Record definitions accepted at first sight, and those changed since acceptance."""
        accepted, self._first_seen_tools = self._first_seen_tools, []
        if self.audit_log is None:
            return
        for name in dict.fromkeys(pin.server for pin in accepted):
            mine = [(pin.tool, pin.digest) for pin in accepted if pin.server == name]
            details = _describe_tools(mine)
            self.audit_log.record(
                AuditType.DEFINITION_ACCEPTED, GATEWAY, server=name, details=details
            )
        changed: dict[str, str] = {}
        for offer in entries:
            standing, place = self.review_of(offer), (server, offer.name)
            if standing.state is not ReviewState.CHANGED:
                self._recorded_digests.pop(place, None)
            elif self._recorded_digests.get(place) != standing.digest:
                self._recorded_digests[place] = changed[offer.name] = standing.digest
        if changed:
            self.audit_log.record(
                AuditType.DEFINITION_CHANGED,
                f"{SERVER_SUBJECT_PREFIX}{server}",
                server=server,
                rate_key=server,
                details=_describe_tools(list(changed.items())),
            )

    def _findings(
        self, entry: CatalogEntry, seen: DefinitionAnalysis, policy: ServerPolicy
    ) -> tuple[DefinitionSuspicion, ...]:
        found = list(seen.findings)
        rival = self._lookalikes.find_older(entry.server, entry.name)
        if rival is not None:
            what = f"{rival[1]!r:.100} of server {rival[0]!r:.70}, which was there before"
            found.append(DefinitionSuspicion(SuspicionKind.LOOKALIKE, "/name", what))
        if policy.suspicious is SuspicionPolicy.STRICT:
            found += self.find_shadowed(entry)
        return tuple(found)

    def find_shadowed(self, entry: CatalogEntry) -> list[DefinitionSuspicion]:
        """Return a finding for each name or mention of another server's tool. (attack 3)"""
        others = [
            each.server
            for each in self._catalog.find_bare(EntryKind.TOOL, entry.name)
            if each.server != entry.server
        ]
        found = [
            DefinitionSuspicion(
                SuspicionKind.SHADOW, "/name", f"server {other!r:.70} has a tool of that name"
            )
            for other in others[:3]
        ]
        for word in self._examine(entry).possible_tool_names():
            named = self._catalog.find_public(EntryKind.TOOL, word)
            held = [named] if named is not None else self._catalog.find_bare(EntryKind.TOOL, word)
            strangers = [each for each in held if each.server != entry.server]
            if strangers and len(found) < 10:
                whose = f"{word!r:.100}, a tool of server {strangers[0].server!r:.70}"
                found.append(DefinitionSuspicion(SuspicionKind.MENTION, "/description", whose))
        return found


def _required_validators(
    seen: DefinitionAnalysis, policy: ServerPolicy, tool: ToolPolicy
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the validators that must accept, and those that only advise. (MGP §8.2)

    Validators suggested by the definition apply only if neither the operator nor the server named
    any.
    """
    declared = () if seen.label is None else seen.label.validators
    named = tuple(dict.fromkeys((*tool.validators, *declared)))
    if named or policy.fallback is FallbackValidatorPolicy.OFF:
        return named, ()
    return (
        (seen.suggested_validators, ())
        if policy.fallback is FallbackValidatorPolicy.ON
        else ((), seen.suggested_validators)
    )


def _validation_rules(
    seen: DefinitionAnalysis,
    tool: ToolPolicy,
    validators: tuple[str, ...],
    advised: tuple[str, ...],
) -> ValidationRules:
    guessed = {each.argument: ArgumentKind(each.meaning) for each in seen.suggestions}
    named = {name: ArgumentKind(meaning) for name, meaning in tool.arguments.items()}
    if not (validators or advised or named):
        return UNRULED
    return ValidationRules(validators=validators, advised=advised, arguments={**guessed, **named})


def _describe_tools(tools: Sequence[tuple[str, str]]) -> dict[str, object]:
    """Return the names of tools and the digests of their definitions, for an audit event."""
    details: dict[str, object] = {"number": len(tools), "tools": dict(tools[:MAX_NAMES_IN_EVENT])}
    if len(tools) > MAX_NAMES_IN_EVENT:
        details["more"] = len(tools) - MAX_NAMES_IN_EVENT
    return details
