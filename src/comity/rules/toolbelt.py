"""Which tools stand in a model's context, and that they stay within its budget. (MGP §16.7, §16.8)

Rule 1: three kinds of tools are in a context: pinned, cached because they were used or asked for,
        and the results of a search, for as long as that one answer. The gateway's own stand with
        the pinned ones and are paid out of their reserve.
Rule 2: each kind has a bound of its own, and all together have one. A tool is in it whole or not.
Rule 3: what is pinned is never evicted to make room. Whatever is pinned beyond its reserve was
        never let in; its names are told.
Rule 4: room in the cache is made by letting go what was used longest ago.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final


@dataclass(frozen=True, slots=True)
class Budget:
    """`tool_context_budget`: how many tokens definitions may take. (MGP §16.8)"""

    max_tokens: int = 8000
    pinned_reserve: int = 2000
    discovery_reserve: int = 3000
    cache_limit: int = 3000


@dataclass(frozen=True, slots=True)
class Pinned:
    """Tools that are always listed for the parties whose ids a pattern covers: server and name."""

    party: str
    tools: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Weighed:
    """A tool by its name, and what its definition costs."""

    name: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Packed:
    """What fits, in the order of what was offered, and the names of what does not."""

    taken: tuple[Weighed, ...] = ()
    left_out: tuple[str, ...] = ()

    @property
    def tokens(self) -> int:
        return sum(each.tokens for each in self.taken)


def pack(offered: Iterable[Weighed], room: int) -> Packed:
    """Whole tools only, the first ones first; one that is too large lets smaller ones pass."""
    taken: list[Weighed] = []
    left_out: list[str] = []
    for each in {each.name: each for each in offered}.values():
        if each.tokens <= room:
            taken.append(each)
            room -= each.tokens
        else:
            left_out.append(each.name)
    return Packed(tuple(taken), tuple(left_out))


@dataclass(frozen=True, slots=True)
class Loaded:
    """What came of putting tools into the cache."""

    added: tuple[Weighed, ...] = ()
    # In it already, cached or pinned.
    present: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    evicted: tuple[str, ...] = ()

    @property
    def tokens_added(self) -> int:
        return sum(each.tokens for each in self.added)

    @property
    def has_changed(self) -> bool:
        return bool(self.added or self.evicted)


_NOTHING: Final[Mapping[str, int]] = {}


@dataclass(slots=True)
class Toolbelt:
    """The tools of one session."""

    budget: Budget
    # What the gateway's own tools cost, which are always there.
    own: int = 0
    pinned: Mapping[str, int] = field(default_factory=lambda: _NOTHING)
    # Those that are pinned and find no room.
    set_aside: tuple[str, ...] = ()
    cached: OrderedDict[str, int] = field(default_factory=OrderedDict[str, int])

    @property
    def total(self) -> int:
        """What stands in the context now."""
        return self.own + sum(self.pinned.values()) + sum(self.cached.values())

    @property
    def count(self) -> int:
        """How many tools of servers that are."""
        return len(self.pinned) + len(self.cached)

    @property
    def room_for_results(self) -> int:
        """How much a search may bring."""
        return max(0, min(self.budget.discovery_reserve, self.budget.max_tokens - self.total))

    @property
    def _room_for_cached(self) -> int:
        others = self.own + sum(self.pinned.values())
        return max(0, min(self.budget.cache_limit, self.budget.max_tokens - others))

    def pin(self, offered: Sequence[Weighed]) -> tuple[str, ...]:
        """Have these pinned and no others; gives what is no longer cached then."""
        within = min(self.budget.pinned_reserve, self.budget.max_tokens)
        packed = pack(offered, max(0, within - self.own))
        self.pinned = {each.name: each.tokens for each in packed.taken}
        self.set_aside = packed.left_out
        for name in self.pinned:
            self.cached.pop(name, None)
        return self._make_room(self._room_for_cached)

    def load(self, offered: Sequence[Weighed]) -> Loaded:
        """Cache these, the best of them first; older ones are let go for them."""
        present = tuple(e.name for e in offered if e.name in self.pinned or e.name in self.cached)
        again = [e for e in offered if e.name in self.cached]
        new = [e for e in offered if e.name not in present]
        # What is asked for once more is as good as new: it is not let go for the others.
        room = self._room_for_cached - sum(self.cached[each.name] for each in again)
        packed = pack(new, room)
        evicted = self._make_room(
            self._room_for_cached - packed.tokens, {each.name for each in again}
        )
        for each in reversed([*again, *packed.taken]):
            self.cached[each.name] = each.tokens
            self.cached.move_to_end(each.name)
        return Loaded(packed.taken, present, packed.left_out, evicted)

    def use(self, tool: Weighed) -> Loaded:
        """A tool is called: it is the one used last. One that cannot fit stays outside."""
        if tool.name in self.cached:
            self.cached.move_to_end(tool.name)
            return Loaded(present=(tool.name,))
        return self.load((tool,))

    def drop(self, names: Iterable[str]) -> tuple[str, ...]:
        """Let go of these where they are cached; gives those that were."""
        return tuple(name for name in names if self.cached.pop(name, None) is not None)

    def _make_room(self, room: int, kept: Iterable[str] = ()) -> tuple[str, ...]:
        """Let go what was used longest ago, until what is left fits."""
        spared, evicted = set(kept), list[str]()
        held = sum(self.cached.values())
        for name in [each for each in self.cached if each not in spared]:
            if held <= room:
                break
            held -= self.cached.pop(name)
            evicted.append(name)
        return tuple(evicted)
