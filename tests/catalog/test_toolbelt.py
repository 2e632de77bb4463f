"""Toolbelts: the context budget against a plain model, and the toolbelt of each client."""

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from comity.catalog import toolbelt
from comity.catalog.catalog import Catalog
from comity.catalog.token_counter import ESTIMATE
from comity.catalog.toolbelt import (
    ContextBudget,
    PinnedTools,
    SizedTool,
    Toolbelt,
    ToolbeltDefaults,
    ToolbeltService,
    pack_tools,
)
from comity.gateway.pipeline import CallGate
from comity.mcp import jsonrpc
from comity.mcp.actors import Actor
from comity.mcp.entries import CatalogEntry, EntryKind
from comity.sessions.calls import Call
from comity.sessions.client_streams import ClientStream
from comity.sessions.sessions import Session
from tests.support.clock import ManualClock

NAMES = st.sampled_from([f"s__t{number}" for number in range(12)])
WEIGHTS = {f"s__t{number}": size for number, size in enumerate([*range(50, 650, 60), 900, 1200])}
SOME = st.lists(NAMES, max_size=6, unique=True)


def weighed(names: list[str]) -> list[SizedTool]:
    return [SizedTool(name, WEIGHTS[name]) for name in names]


class AsItShouldBe(RuleBasedStateMachine):
    """Whatever is done with a belt, in whatever order."""

    budget = ContextBudget(2000, 700, 800, 900)
    own = 150

    def __init__(self) -> None:
        super().__init__()
        self.belt = Toolbelt(self.budget, self.own)
        # The cached names, the one used longest ago first.
        self.order: list[str] = []

    @rule(names=SOME)
    def pin(self, names: list[str]) -> None:
        evicted = self.belt.pin(weighed(names))
        assert [*self.belt.pinned, *self.belt.unpinned] == sorted(
            names, key=lambda name: (name in self.belt.unpinned, names.index(name))
        )
        self.order = [name for name in self.order if name not in self.belt.pinned]
        assert list(evicted) == self.order[: len(evicted)]
        del self.order[: len(evicted)]

    @rule(name=NAMES)
    def use(self, name: str) -> None:
        pinned = dict(self.belt.pinned)
        done = self.belt.use(SizedTool(name, WEIGHTS[name]))
        assert self.belt.pinned == pinned
        if name in pinned:
            assert not done.has_changed
        elif name in self.belt.cached:
            self._came([name], done.evicted)
        else:
            assert done.left_out == (name,)
            assert not done.evicted

    @rule(names=SOME)
    def load(self, names: list[str]) -> None:
        before, total = dict(self.belt.cached), self.belt.total
        done = self.belt.load(weighed(names))
        assert {*done.present, *(each.name for each in done.added), *done.left_out} == {*names}
        assert done.tokens_added == sum(WEIGHTS[each.name] for each in done.added)
        gone = sum(before[name] for name in done.evicted)
        assert self.belt.total == total + done.tokens_added - gone
        there = [name for name in names if name in self.belt.cached]
        again = [name for name in there if name in before]
        self._came([*again, *(each.name for each in done.added)], done.evicted)

    @rule(names=SOME)
    def drop(self, names: list[str]) -> None:
        gone = self.belt.remove(names)
        assert gone == tuple(name for name in names if name in self.order)
        self.order = [name for name in self.order if name not in gone]

    def _came(self, names: list[str], evicted: tuple[str, ...]) -> None:
        """The best of them is the one used last; the oldest of the others have gone."""
        others = [name for name in self.order if name not in names]
        assert list(evicted) == others[: len(evicted)]
        self.order = [*others[len(evicted) :], *reversed(names)]

    @invariant()
    def is_within_its_bounds(self) -> None:
        belt, budget = self.belt, self.budget
        assert belt.own_tokens + sum(belt.pinned.values()) <= budget.pinned_reserve
        assert sum(belt.cached.values()) <= budget.cache_limit
        assert belt.total <= budget.max_tokens
        assert belt.total + belt.room_for_results <= budget.max_tokens
        assert belt.room_for_results <= budget.discovery_reserve

    @invariant()
    def is_what_it_says(self) -> None:
        belt = self.belt
        assert list(belt.cached) == self.order
        assert belt.count == len(belt.pinned) + len(self.order)
        assert belt.total == self.own + sum(WEIGHTS[name] for name in (*belt.pinned, *belt.cached))
        assert belt.pinned.keys().isdisjoint(belt.cached)


TestABelt = AsItShouldBe.TestCase


class WhereTheWholeIsLessThanItsParts(AsItShouldBe):
    """An operator's reserves may sum to more than there is: the whole is what counts."""

    budget = ContextBudget(1000, 700, 800, 900)


TestATightBelt = WhereTheWholeIsLessThanItsParts.TestCase


@given(st.lists(st.integers(0, 500), max_size=30), st.integers(0, 2000))
def test_packing_takes_whole_tools_in_order_and_names_the_rest(sizes: list[int], room: int) -> None:
    offered = [SizedTool(str(number), size) for number, size in enumerate(sizes)]
    packed = pack_tools(offered, room)
    assert packed.tokens <= room
    taken = {each.name for each in packed.packed}
    assert [each for each in offered if each.name in taken] == list(packed.packed)
    assert taken.isdisjoint(packed.left_out)
    assert len(taken) + len(packed.left_out) == len(offered)
    # Whatever was left out had no room left when its turn came.
    for place, each in enumerate(offered):
        if each.name in packed.left_out:
            before = sum(e.tokens for e in offered[:place] if e.name in taken)
            assert before + each.tokens > room


def shelf(catalog: Catalog, *names: str, about: str = "x" * 400) -> list[CatalogEntry]:
    offers = [
        CatalogEntry(
            f"s__{name}", "s", name, jsonrpc.to_json({"name": f"s__{name}", "description": about})
        )
        for name in names
    ]
    catalog.put("s", EntryKind.TOOL, offers)
    return offers


def belts(
    catalog: Catalog,
    outfit: ToolbeltDefaults | None = None,
    clock: ManualClock[float] | None = None,
) -> ToolbeltService:
    return ToolbeltService(
        CallGate(catalog), ESTIMATE, clock or ManualClock(0.0), outfit or ToolbeltDefaults()
    )


def call(actor: Actor, session: Session | None = None) -> Call:
    outbox = ClientStream()
    outbox.actor = actor
    return Call(jsonrpc.make_request(1, "tools/call", {"name": "x"}), outbox, session, 0.0)


def test_parties_that_are_idle_are_forgotten_and_so_are_too_many() -> None:
    catalog, clock = Catalog(), ManualClock(0.0)
    (tool,) = shelf(catalog, "a")
    kept = belts(catalog, ToolbeltDefaults(idle_seconds=100), clock)
    kept.use(call(Actor("agent:old")), tool)
    clock.now = 99.0
    kept.use(call(Actor("agent:new")), tool)
    assert len(kept) == 2
    clock.now = 101.0
    assert list(kept.toolbelt_of(call(Actor("agent:new"))).tools.cached) == ["s__a"]
    assert len(kept) == 1
    assert not kept.toolbelt_of(call(Actor("agent:old"))).tools.cached


def test_no_more_belts_than_the_bound() -> None:
    kept = belts(Catalog())
    for number in range(toolbelt.MAX_TOOLBELTS + 50):
        kept.toolbelt_of(call(Actor(f"agent:{number}")))
    assert len(kept) == toolbelt.MAX_TOOLBELTS


def test_two_keys_of_one_party_that_may_do_different_things_share_no_belt() -> None:
    catalog = Catalog()
    (tool,) = shelf(catalog, "a")
    kept = belts(catalog)
    kept.use(call(Actor("agent:a")), tool)
    bound = Actor("agent:a", permissions=(("tools/call", "s/b"),))
    assert not kept.toolbelt_of(call(bound)).tools.cached


async def test_a_sessions_belt_ends_with_it() -> None:
    catalog = Catalog()
    (tool,) = shelf(catalog, "a")
    kept, session = belts(catalog), Session("", 0.0, "agent:a")
    kept.use(call(Actor("agent:a"), session), tool)
    assert len(kept) == 1
    await session.close()
    assert len(kept) == 0


def test_tool_that_is_too_large_for_the_cache_is_used_and_not_kept() -> None:
    catalog = Catalog()
    small, _ = shelf(catalog, "a", "b")
    large = CatalogEntry("s__l", "s", "l", b'{"name":"s__l","x":"' + b"x" * 20_000 + b'"}')
    kept, who = belts(catalog), call(Actor("agent:a"))
    kept.use(who, small)
    kept.use(who, large)
    assert list(kept.toolbelt_of(who).tools.cached) == ["s__a"]


def test_change_of_the_list_is_told_once_until_the_list_is_read_again() -> None:
    catalog = Catalog()
    one, other = shelf(catalog, "b", "a")
    kept, who = belts(catalog), call(Actor("agent:a"))
    told: list[str] = []
    kept.watch(lambda actor, session: told.append(actor.party))
    kept.list_definitions(kept.toolbelt_of(who))
    kept.use(who, one)
    kept.use(who, one)
    assert told == ["agent:a"]
    assert kept.has_list_changed(Actor("agent:a"), None)
    kept.list_definitions(kept.toolbelt_of(who))
    assert not kept.has_list_changed(Actor("agent:a"), None)
    kept.use(who, one)
    assert told == ["agent:a"]
    kept.use(who, other)
    assert told == ["agent:a"] * 2
    before = kept.list_definitions(kept.toolbelt_of(who))
    kept.use(who, one)
    assert kept.list_definitions(kept.toolbelt_of(who)) == before == sorted(before), (
        "use does not change the order"
    )


def test_nothing_is_held_but_the_definitions_of_what_is_in_it() -> None:
    catalog = Catalog()
    offers = shelf(catalog, *(f"t{number}" for number in range(50)))
    outfit = ToolbeltDefaults(ContextBudget(cache_limit=500), [PinnedTools("*", (("s", "t0"),))])
    kept, who = belts(catalog, outfit), call(Actor("agent:a"))
    for offer in offers:
        kept.use(who, offer)
    belt = kept.toolbelt_of(who)
    assert belt.definitions.keys() == {"s__t0", *belt.tools.cached}
    assert belt.tools.total <= 500 + belt.tools.pinned["s__t0"]
