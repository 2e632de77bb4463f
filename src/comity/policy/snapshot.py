"""The grants in force on this node, and how long they may be used without confirmation."""

import asyncio
import logging
import math
import time
from collections import OrderedDict
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import batched, count
from operator import attrgetter
from typing import Final, Protocol

from comity.errors import POLICY_UNKNOWN, Misconfigured, Unavailable
from comity.identity.login.model import BrowserSession, BrowserSessionStore
from comity.identity.principals import ApiKey, KeyStore, Principal, PrincipalStore
from comity.mcp.actors import Actor
from comity.policy import visibility
from comity.policy.generation import PolicyGeneration
from comity.policy.grants import (
    ANY_SUBJECT,
    CREDENTIAL_DENIAL,
    NO_STATIC_RULES,
    Decision,
    Effect,
    Grant,
    GrantIndex,
    GrantSet,
    GrantStore,
    Guardrails,
    StaticRules,
)
from comity.policy.visibility import ServerVisibility
from comity.storage.changes import ChangeFeed, RecordChange, RecordKind
from comity.toolkit.background import BackgroundTasks
from comity.toolkit.bucket_map import BucketMap

RETRY_AFTER: Final = timedelta(seconds=1)
SUSPENSION_SECONDS: Final = 0.6
"""How long a process may give no heartbeat before it counts as suspended."""

type Clock = Callable[[], float]


def sleepless_clock() -> Clock:
    """Return a clock that also runs while the machine sleeps, if the platform has one."""
    boottime = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic if boottime is None else partial(time.clock_gettime, boottime)


class SnapshotFreshness:
    """Tracks how long the known state may be used. Without a maximum age, it never expires."""

    __slots__ = (
        "_awake_until",
        "_confirmed_at",
        "_known_until",
        "_max_age_seconds",
        "_suspended_at",
        "_until",
        "clock",
    )

    def __init__(self, age: timedelta | None = None, clock: Clock | None = None) -> None:
        self.clock: Clock = sleepless_clock() if clock is None else clock
        self._max_age_seconds = math.inf if age is None else age.total_seconds()
        self._confirmed_at = -math.inf
        self._known_until = -math.inf
        self._awake_until = math.inf
        self._suspended_at = -math.inf
        # The earlier of both deadlines, so that a call costs one comparison.
        self._until = -math.inf

    @property
    def has_max_age(self) -> bool:
        return self._max_age_seconds < math.inf

    @property
    def is_fresh(self) -> bool:
        return self.clock() <= self._until

    @property
    def age(self) -> float:
        """Seconds since the store was last asked. Infinite before the first time."""
        return self.clock() - self._confirmed_at

    def confirm(self, asked_at: float) -> None:
        """Note that everything the store held at the moment `asked` is known on this node."""
        self._detect_suspension(self.clock())
        if asked_at < self._suspended_at:
            return
        self._confirmed_at = asked_at
        self._known_until = asked_at + self._max_age_seconds
        self._until = min(self._known_until, self._awake_until)

    def beat(self) -> bool:
        """Give a heartbeat. After the first, the caller must continue to give them.

        Returns True if the previous heartbeat is too long ago. The store should then be asked at
        once.
        """
        now = self.clock()
        stood_still = self._detect_suspension(now)
        self._awake_until = now + SUSPENSION_SECONDS
        self._until = min(self._known_until, self._awake_until)
        return stood_still

    def _detect_suspension(self, now: float) -> bool:
        if now <= self._awake_until:
            return False
        self._suspended_at = now
        self._known_until = self._until = -math.inf
        return True

    def require_fresh(self) -> None:
        """Raise Unavailable if no decision is possible now."""
        if self.clock() > self._until:
            raise self._stale_error()

    def _stale_error(self) -> Unavailable:
        reason = "permissions are not loaded yet (store unavailable); retry shortly"
        if self._confirmed_at > -math.inf:
            reason = (
                f"permissions were last confirmed {self.age:.0f} s ago, which is too "
                "long; nothing is allowed before the store answers again"
            )
        return Unavailable(reason, POLICY_UNKNOWN, RETRY_AFTER)


class RecordCache[T]:
    """The records of one kind, by id. Usable only while they are fresh."""

    __slots__ = ("_freshness", "_generation", "_record_by_id", "_subject_of")

    def __init__(
        self,
        freshness: SnapshotFreshness,
        generation: PolicyGeneration,
        subject_of: Callable[[T], str],
    ) -> None:
        self._freshness = freshness
        self._generation = generation
        # The principal whose calls a record concerns.
        self._subject_of = subject_of
        self._record_by_id: dict[str, T] = {}

    def __len__(self) -> int:
        return len(self._record_by_id)

    def ids(self) -> list[str]:
        """Return the ids of all records."""
        return list(self._record_by_id)

    def get(self, id: str, /) -> T | None:
        """Return a record or None. Raises Unavailable while the records are stale.

        A valid credential is thus never rejected as unknown.
        """
        self._freshness.require_fresh()
        return self._record_by_id.get(id)

    def values(self) -> Collection[T]:
        """Return all records. Raises Unavailable while they are stale."""
        self._freshness.require_fresh()
        return self._record_by_id.values()

    def replace(self, records: Mapping[str, T]) -> None:
        self._record_by_id = dict(records)
        self._generation.advance()

    def put(self, id: str, record: T | None) -> None:
        """Replace one record. None removes it."""
        # A record that now belongs to another principal concerns both.
        records = (self._record_by_id.get(id), record)
        self._generation.advance_for(self._subject_of(each) for each in records if each is not None)
        if record is None:
            self._record_by_id.pop(id, None)
        else:
            self._record_by_id[id] = record


MAX_CACHED_DECISIONS: Final = 100_000
MAX_CACHED_NAME_LENGTH: Final = 256

type WallClock = Callable[[], datetime]
type Asked = tuple[str, tuple[str, ...], tuple[tuple[str, str], ...] | None, str, str, str, str]
"""The cache key of a decision: its actor's relevant fields, verb, server, name and view."""


type StillHolds = Callable[[], bool]
"""Returns whether the actor still sees the same entries. Raises Unavailable."""


class PolicyEngine(Protocol):
    """Decides what an actor may do. Raises Unavailable while the grants are not known."""

    def require_fresh(self) -> None:
        """Raise Unavailable if no decision is possible now, also none that was made before."""
        ...

    def authorize(
        self, actor: Actor, verb: str, server: str, name: str, view: str = ""
    ) -> Decision:
        """Decide what the actor may do with a catalog entry, at the endpoint of a view if named."""
        ...

    def never_expires(self, actor: Actor, server: str, name: str, view: str = "") -> bool:
        """Return whether only a change of grants can change what this actor may do there."""
        ...

    def may_know_server(self, actor: Actor, server: str) -> bool:
        """Whether any entry of a server may be open to the actor, so that it may see the server."""
        ...

    def server_visibility(self, actor: Actor, verb: str, server: str) -> ServerVisibility:
        """Return which entries of a server the actor sees for a verb."""
        ...

    def visible_servers(self, actor: Actor) -> Collection[str] | None:
        """The only servers of which the actor may see anything, or None if any server qualifies."""
        ...

    def visibility_check(self, actor: Actor) -> StillHolds:
        """Return a function that tells whether decisions for this actor are still the same."""
        ...

    def standing_answer(
        self, actor: Actor, server: str, name: str, arguments: object, definition: str = ""
    ) -> Grant | None:
        """Return the grant that lets a call pass without an approval request, or None.

        `definition` is the digest of the tool definition. Without it, only grants that are bound to
        no definition match.
        """
        ...


class GrantSnapshot:
    """The set of grants that decides every call. A change replaces the set."""

    def __init__(
        self,
        access: GrantSet | None = None,
        clock: WallClock = lambda: datetime.now(UTC),
        freshness: SnapshotFreshness | None = None,
    ) -> None:
        self.latest = access or GrantSet()
        # Each decision with the number of the generation for which it is known to hold.
        self._decision_by_key: OrderedDict[Asked, tuple[int, Decision]] = OrderedDict()
        self._clock = clock
        self._freshness = SnapshotFreshness() if freshness is None else freshness
        self.require_fresh = self._freshness.require_fresh
        self.generation = PolicyGeneration()
        if access is not None:
            self._freshness.confirm(self._freshness.clock())

    @property
    def access(self) -> GrantSet:
        """The grants in force.

        Raises Unavailable while they are stale: a node without current grants denies.
        """
        self._freshness.require_fresh()
        return self.latest

    def replace(self, access: GrantSet) -> None:
        """Use other grants from now on. This does not mark them as fresh."""
        self.latest = access
        self.generation.advance()

    def replace_indexes(self, indexes: Mapping[str, GrantIndex]) -> None:
        """Use other grants of these subjects from now on. This does not mark them as fresh."""
        self.latest = self.latest.with_indexes(indexes)
        if ANY_SUBJECT in indexes:
            self.generation.advance()
        else:
            self.generation.advance_for(indexes)

    def never_expires(self, actor: Actor, server: str, name: str, view: str = "") -> bool:
        return self.latest.never_expires(actor, server, name, view)

    def authorize(
        self, actor: Actor, verb: str, server: str, name: str, view: str = ""
    ) -> Decision:
        """Decide what the actor may do. Permissive decisions are cached until the grants change."""
        self._freshness.require_fresh()
        if verb.startswith(actor.excluded):
            return CREDENTIAL_DENIAL
        asked = (actor.party, actor.groups, actor.permissions, verb, server, name, view)
        known = self._decision_by_key.get(asked)
        if known is not None and known[0] == self.generation.number:
            return known[1]
        return self._renew(actor, asked, known)

    def _renew(self, actor: Actor, key: Asked, known: tuple[int, Decision] | None) -> Decision:
        """Return a decision that holds now: the known one, if no change since concerns the actor.

        A decision depends on the grants of the actor's subjects, on those of all subjects and on
        the static rules. A change of the last two is a change of everything.
        """
        number = self.generation.number
        if known is not None and self.generation.is_unchanged_since(known[0], actor.subjects):
            self._decision_by_key[key] = number, known[1]
            return known[1]
        *_, verb, server, name, view = key
        now = self._clock()
        if view:
            decision = self.latest.authorize_in_view(actor, verb, (server, name), view, now)
        else:
            decision = self.latest.authorize(actor, verb, server, name, now)
        # A caller can invent any number of long names, so denials and long names are not cached.
        is_worth_it = decision.effect is not Effect.DENY and len(name) <= MAX_CACHED_NAME_LENGTH
        if is_worth_it and self.latest.never_expires(actor, server, name, view):
            if len(self._decision_by_key) >= MAX_CACHED_DECISIONS:
                self._decision_by_key.popitem(last=False)
            self._decision_by_key[key] = number, decision
        return decision

    def may_know_server(self, actor: Actor, server: str) -> bool:
        return visibility.can_know_server(self.access, actor, server, self._clock())

    def server_visibility(self, actor: Actor, verb: str, server: str) -> ServerVisibility:
        return visibility.server_visibility(self.access, actor, verb, server, self._clock())

    def visible_servers(self, actor: Actor) -> Collection[str] | None:
        return visibility.visible_servers(self.access, actor)

    def visibility_check(self, actor: Actor) -> StillHolds:
        basis, ends = visibility.visibility_basis_and_expiry(self.access, actor, self._clock())

        def still_holds() -> bool:
            if ends is not None and self._clock() >= ends:
                return False
            # Compare by identity: every change of an entry replaces the object.
            now = visibility.visibility_basis(self.access, actor)
            return all(one is other for one, other in zip(basis, now, strict=True))

        return still_holds

    def standing_answer(
        self, actor: Actor, server: str, name: str, arguments: object, definition: str = ""
    ) -> Grant | None:
        place = (server, name)
        return self.access.standing_answer(actor, place, arguments, definition, self._clock())


class AllowAll:
    """Allows everything to every client, for an endpoint without authentication."""

    def require_fresh(self) -> None:
        """Return: nothing here can be out of date."""

    def authorize(
        self, actor: Actor, verb: str, server: str, name: str, view: str = ""
    ) -> Decision:
        return _ALLOW_DECISION

    def never_expires(self, actor: Actor, server: str, name: str, view: str = "") -> bool:
        return True

    def may_know_server(self, actor: Actor, server: str) -> bool:
        return True

    def server_visibility(self, actor: Actor, verb: str, server: str) -> ServerVisibility:
        return visibility.ALL_VISIBLE

    def visible_servers(self, actor: Actor) -> Collection[str] | None:
        return None

    def visibility_check(self, actor: Actor) -> StillHolds:
        return _always_true

    def standing_answer(
        self, actor: Actor, server: str, name: str, arguments: object, definition: str = ""
    ) -> Grant | None:
        return None


def _always_true() -> bool:
    return True


_ALLOW_DECISION = Decision(Effect.ALLOW, "nothing is governed")


log = logging.getLogger(__name__)

HEARTBEAT_INTERVAL: Final = timedelta(milliseconds=200)
"""Well below `SUSPENSION_SECONDS`, so that a busy process does not count as suspended."""

BEATS_PER_LOOK: Final = 2
"""How many heartbeats pass between two looks at the store. It bounds the delay of lost notices."""

REFRESH_TIMEOUT_SECONDS: Final = 5.0
"""How long a call waits for the store after the process was suspended."""

MAX_SINGLE_READS: Final = 200

type Watcher = Callable[[str], None]


class _IdentityRecord(Protocol):
    @property
    def id(self) -> str: ...


class _RecordPages[T](Protocol):
    async def get(self, id: str, /) -> T | None: ...
    async def page(self, after: str = "") -> Sequence[T]: ...


class PolicyStores(Protocol):
    """The stores that a snapshot reads."""

    @property
    def grants(self) -> GrantStore: ...
    @property
    def parties(self) -> PrincipalStore: ...
    @property
    def keys(self) -> KeyStore: ...
    @property
    def sessions(self) -> BrowserSessionStore: ...
    @property
    def changes(self) -> ChangeFeed: ...
    async def open(self) -> None: ...
    async def close(self) -> None: ...


class PolicySnapshot[Stores: PolicyStores]:
    """Keeps the grants, principals, keys and sessions of this node in step with the store."""

    def __init__(
        self,
        records: Stores,
        grants: GrantSnapshot,
        freshness: SnapshotFreshness,
        static_rules: StaticRules = NO_STATIC_RULES,
    ) -> None:
        self.records = records
        self.grants = grants
        self.freshness = freshness
        self.keys = RecordCache[ApiKey](freshness, grants.generation, attrgetter("party"))
        self.parties = RecordCache[Principal](freshness, grants.generation, attrgetter("id"))
        # No tool call depends on a browser session, so a change of one voids no call plan.
        self.sessions = RecordCache[BrowserSession](
            freshness, PolicyGeneration(), attrgetter("party")
        )
        self._static_rules = static_rules
        self._version = 0
        self._seen_count = 0
        self._is_open = False
        self._is_loaded = False
        self._trouble = ""
        self._background_tasks = BackgroundTasks("the records")
        # One reader at a time, so that an older answer never replaces a newer one.
        self._read_lock = asyncio.Lock()
        self._watchers: list[tuple[RecordKind, Watcher]] = []

    @property
    def version(self) -> int:
        """The version of the store that is in force on this node."""
        return self._version

    @property
    def problem(self) -> str:
        """Why this node should receive no calls now. Empty while it can decide them."""
        if self._trouble:
            return "store unreachable"
        return "" if self.freshness.is_fresh else "policy unknown"

    def groups_of(self, party: str) -> tuple[str, ...]:
        """Return the groups in the record of a principal. Raises Unavailable if they are stale."""
        found = self.parties.get(party)
        return () if found is None else found.groups

    def members_of(self, groups: Collection[str]) -> list[str]:
        """Return the principals whose records name one of these groups. Raises Unavailable."""
        wanted = frozenset(groups)
        return [each.id for each in self.parties.values() if not wanted.isdisjoint(each.groups)]

    def watch(self, kind: RecordKind, watcher: Watcher) -> None:
        """Register a callback for changed records of a kind.

        The callback receives the name of the owner. An empty name means all.
        """
        self._watchers.append((kind, watcher))

    def watch_principals(self, watcher: Watcher) -> None:
        """Register a callback for principals whose record or whose API keys have changed."""
        self.watch(RecordKind.PARTIES, watcher)
        self.watch(RecordKind.KEYS, lambda key: watcher(self._owner_of(key)))

    def _owner_of(self, key: str) -> str:
        """Return the principal of a key. Empty, which means all, if the key was deleted."""
        found: ApiKey | None = None
        with suppress(Unavailable):
            found = self.keys.get(key)
        return "" if found is None else found.party

    @property
    def static_rules(self) -> StaticRules:
        """The static rules of the settings file."""
        return self._static_rules

    async def replace_static_rules(self, static_rules: StaticRules) -> None:
        """Replace the static rules."""
        async with self._read_lock:
            self._static_rules = static_rules
            if self._is_loaded:
                self.grants.replace(self.grants.latest.with_static_rules(static_rules))
                for kind, watcher in self._watchers:
                    if kind is RecordKind.GRANTS:
                        _call_watcher(watcher, "")

    async def refresh(self) -> None:
        """Load all changes that were written so far. Raises Unavailable or Misconfigured."""
        async with self._read_lock:
            if not self._is_open:
                await self.records.open()
                self._is_open = True
            asked = self.freshness.clock()
            change_count = await self.records.changes.count_changes()
            if change_count != self._seen_count:
                await self._read_changes()
                # The count is from before the changes were read, so it misses no later change.
                self._seen_count = change_count
            self.freshness.confirm(asked)

    async def _read_changes(self) -> None:
        news = await self.records.changes.since(self._version)
        if self._is_loaded and news.changes is not None:
            await self._reread_changed(news.changes)
        else:
            await self._load()
        self._version = news.version

    @property
    def is_fresh(self) -> bool:
        """Whether the known state is fresh enough to decide calls."""
        return self.freshness.is_fresh

    async def refresh_if_stale(self) -> None:
        """Ask the store again after a suspension, so that it causes no refusals.

        All callers wait briefly for one shared query. If the store is known not to answer, they do
        not wait. The decision that follows uses an answer newer than the suspension, or it is a
        refusal.
        """
        if self.freshness.is_fresh or self._trouble:
            return
        # Note the suspension first, because only an answer to a later question counts as fresh.
        self.freshness.beat()
        if not self._background_tasks:
            self._background_tasks.start(self._refresh_soon(), at_once=True)
        with suppress(TimeoutError):
            async with asyncio.timeout(REFRESH_TIMEOUT_SECONDS):
                await self._background_tasks.finish()

    @asynccontextmanager
    async def follow(self) -> AsyncGenerator[None]:
        """Load all records, then follow every change until the context ends.

        Comity waits for a store that does not answer, and allows nothing meanwhile. A store that
        cannot be used at all raises an error at once.
        """
        try:
            await self._retry_refresh()
            work = asyncio.ensure_future(self._follow_changes())
            try:
                yield
            finally:
                work.cancel()
                self._background_tasks.cancel()
                await asyncio.gather(work, self._background_tasks.finish(), return_exceptions=True)
        finally:
            await self.records.close()

    async def _follow_changes(self) -> None:
        """Give heartbeats, and refresh in the background, so that a slow store delays none."""
        is_noticed = False
        for number in count():
            # Without a maximum age of the records, no heartbeats are needed.
            stood_still = self.freshness.has_max_age and self.freshness.beat()
            is_due = stood_still or is_noticed or number % BEATS_PER_LOOK == 0
            # A refresh that runs already may have asked before this change, so one more follows it.
            if is_due and len(self._background_tasks) < 2:
                self._background_tasks.start(self._refresh_soon(), at_once=True)
            is_noticed = await self.records.changes.wait_for_change(HEARTBEAT_INTERVAL)

    async def _refresh_soon(self) -> None:
        try:
            await self._retry_refresh()
        except Misconfigured as error:
            self._log_trouble(str(error))
        except Exception:
            log.exception("Watching the records failed")

    async def _retry_refresh(self) -> None:
        try:
            await self.refresh()
        except Unavailable as error:
            self._log_trouble(str(error))
        else:
            if self._trouble:
                log.warning("The store is available again. Its permissions are in force.")
            self._trouble = ""

    def _log_trouble(self, trouble: str) -> None:
        """Log a problem once, regardless of the number of attempts."""
        if not self._trouble:
            log.error("%s; using cached permissions", trouble)
        self._trouble = trouble

    async def _load(self) -> None:
        self.parties.replace(await _read_all(self.records.parties))
        self.keys.replace(await _read_all(self.records.keys))
        self.sessions.replace(await _read_all(self.records.sessions))
        await self._load_grants()
        self._is_loaded = True
        for _, watcher in self._watchers:
            _call_watcher(watcher, "")

    async def _load_grants(self) -> None:
        indexes: dict[str, GrantIndex] = {}
        _add_to_indexes(indexes, self._static_rules.grants)
        subjects = BucketMap(indexes)
        async for page in _read_pages(self.records.grants.page):
            # Each page is added in its own turn of the loop: 100,000 subjects at once would hold it
            # up. The indexes may grow, since nobody uses them yet.
            indexes = {each.subject: subjects.get(each.subject) or GrantIndex() for each in page}
            _add_to_indexes(indexes, page)
            subjects = subjects.changed(indexes)
        guardrails = Guardrails.from_guardrails(self._static_rules.guardrails)
        self.grants.replace(GrantSet(subjects, self._static_rules, guardrails))

    async def _reread_changed(self, changes: Iterable[RecordChange]) -> None:
        changed: dict[RecordKind, list[str]] = {}
        for what, whose in changes:
            changed.setdefault(what, []).append(whose)
        await _reread_records(
            self.parties, changed.get(RecordKind.PARTIES, ()), self.records.parties
        )
        await _reread_records(self.keys, changed.get(RecordKind.KEYS, ()), self.records.keys)
        sessions = changed.get(RecordKind.SESSIONS, ())
        await _reread_records(self.sessions, sessions, self.records.sessions)
        await self._reread_grants(changed.get(RecordKind.GRANTS, ()))
        for kind, watcher in self._watchers:
            for whose in changed.get(kind, ()):
                _call_watcher(watcher, whose)

    async def _reread_grants(self, subjects: Sequence[str]) -> None:
        if "" in subjects:
            await self._load_grants()
            return
        for some in batched(subjects, MAX_SINGLE_READS):
            laid_out = {
                subject: GrantIndex.from_grants(self._static_rules.grants_of(subject))
                for subject in some
            }
            async for page in _read_pages(partial(self.records.grants.page, subjects=some)):
                _add_to_indexes(laid_out, page)
            self.grants.replace_indexes(laid_out)


async def _reread_records[T: _IdentityRecord](
    cache: RecordCache[T], ids: Sequence[str], store: _RecordPages[T]
) -> None:
    """Read some records again, or all of them if there are too many to read one by one."""
    if "" in ids or len(ids) > MAX_SINGLE_READS:
        cache.replace(await _read_all(store))
        return
    for id in ids:
        cache.put(id, await store.get(id))


async def _read_all[T: _IdentityRecord](store: _RecordPages[T]) -> dict[str, T]:
    return {each.id: each async for page in _read_pages(store.page) for each in page}


async def _read_pages[T: _IdentityRecord](
    read: Callable[[str], Awaitable[Sequence[T]]],
) -> AsyncGenerator[Sequence[T]]:
    after = ""
    while page := await read(after):
        yield page
        after = page[-1].id
        # A store in memory never suspends this coroutine, so other tasks need an explicit turn.
        await asyncio.sleep(0)


def _add_to_indexes(subjects: dict[str, GrantIndex], grants: Iterable[Grant]) -> None:
    found: dict[str, list[Grant]] = {}
    for grant in grants:
        found.setdefault(grant.subject, []).append(grant)
    for subject, some in found.items():
        subjects.setdefault(subject, GrantIndex()).add(some)


def _call_watcher(watcher: Watcher, record_id: str) -> None:
    try:
        watcher(record_id)
    except Exception:
        log.exception("A listener for record changes failed")
