"""A toolbelt against a plain model of it: never over budget, pinned safe, sums exact, LRU true."""

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from comity.rules.toolbelt import Budget, Toolbelt, Weighed, pack

NAMES = st.sampled_from([f"s__t{number}" for number in range(12)])
WEIGHTS = {f"s__t{number}": size for number, size in enumerate([*range(50, 650, 60), 900, 1200])}
SOME = st.lists(NAMES, max_size=6, unique=True)


def weighed(names: list[str]) -> list[Weighed]:
    return [Weighed(name, WEIGHTS[name]) for name in names]


class AsItShouldBe(RuleBasedStateMachine):
    """Whatever is done with a belt, in whatever order."""

    budget = Budget(2000, 700, 800, 900)
    own = 150

    def __init__(self) -> None:
        super().__init__()
        self.belt = Toolbelt(self.budget, self.own)
        # The cached names, the one used longest ago first.
        self.order: list[str] = []

    @rule(names=SOME)
    def pin(self, names: list[str]) -> None:
        evicted = self.belt.pin(weighed(names))
        assert [*self.belt.pinned, *self.belt.set_aside] == sorted(
            names, key=lambda name: (name in self.belt.set_aside, names.index(name))
        )
        self.order = [name for name in self.order if name not in self.belt.pinned]
        assert list(evicted) == self.order[: len(evicted)]
        del self.order[: len(evicted)]

    @rule(name=NAMES)
    def use(self, name: str) -> None:
        pinned = dict(self.belt.pinned)
        done = self.belt.use(Weighed(name, WEIGHTS[name]))
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
        gone = self.belt.drop(names)
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
        assert belt.own + sum(belt.pinned.values()) <= budget.pinned_reserve
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

    budget = Budget(1000, 700, 800, 900)


TestATightBelt = WhereTheWholeIsLessThanItsParts.TestCase


@given(st.lists(st.integers(0, 500), max_size=30), st.integers(0, 2000))
def test_packing_takes_whole_tools_in_order_and_names_the_rest(sizes: list[int], room: int) -> None:
    offered = [Weighed(str(number), size) for number, size in enumerate(sizes)]
    packed = pack(offered, room)
    assert packed.tokens <= room
    taken = {each.name for each in packed.taken}
    assert [each for each in offered if each.name in taken] == list(packed.taken)
    assert taken.isdisjoint(packed.left_out)
    assert len(taken) + len(packed.left_out) == len(offered)
    # Whatever was left out had no room left when its turn came.
    for place, each in enumerate(offered):
        if each.name in packed.left_out:
            before = sum(e.tokens for e in offered[:place] if e.name in taken)
            assert before + each.tokens > room


def test_the_usual_budget_is_the_documents() -> None:
    assert Budget() == Budget(8000, 2000, 3000, 3000)


def test_a_tool_named_twice_is_weighed_once() -> None:
    belt = Toolbelt(Budget())
    assert belt.load([Weighed("a", 5), Weighed("a", 5)]).tokens_added == belt.total == 5


def test_a_pinned_tool_beyond_its_reserve_lets_a_smaller_one_pass() -> None:
    belt = Toolbelt(Budget(pinned_reserve=100))
    belt.pin([Weighed("a", 60), Weighed("b", 50), Weighed("c", 40)])
    assert (list(belt.pinned), belt.set_aside) == (["a", "c"], ("b",))
