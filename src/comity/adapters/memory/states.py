"""State in memory: gone when the process is, and otherwise as in any other store."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Final

from comity.ports.states import Current, Dropped, New, Place, Summary
from comity.rules import keeping
from comity.wire.state_trees import Form, Node, Tree

_NEVER: Final = datetime.min.replace(tzinfo=UTC)


@dataclass(slots=True)
class _Set:
    moved_at: datetime = _NEVER
    revision: int = 0
    head: int | None = None
    data: bytes | None = None
    nodes: dict[int, Node] = field(default_factory=dict[int, Node])
    contents: dict[int, bytes | None] = field(default_factory=dict[int, bytes | None])


class MemoryStates:
    def __init__(self) -> None:
        self._sets: dict[Place, _Set] = {}

    async def current(self, place: Place) -> Current | None:
        found = self._sets.get(place, _Set())
        if found.head is None:
            return None
        return Current(found.head, found.nodes[found.head].name, found.data)

    async def find(self, place: Place, name: str) -> Node | None:
        return (await self.tree(place)).named(name)

    async def tree(self, place: Place) -> Tree:
        found = self._sets.get(place, _Set())
        return Tree(found.revision, found.head, dict(found.nodes))

    async def line(self, place: Place, number: int) -> Sequence[bytes]:
        found = self._sets.get(place, _Set())
        back: list[bytes] = []
        node = found.nodes.get(number)
        while node is not None:
            content = found.contents[node.number]
            if content is not None:
                back.append(content)
            is_patch = node.form is Form.PATCH and node.base is not None
            node = found.nodes.get(node.base or 0) if is_patch else None
        return back[::-1]

    async def add(self, place: Place, new: New, instead: Dropped | None = None) -> Node | None:
        name, at = keeping.name(new.name, "a checkpoint"), keeping.certain(new.at)
        found = self._sets.setdefault(place, _Set())
        if instead is not None and instead.revision != found.revision:
            return None
        gone = frozenset(() if instead is None else instead.numbers)
        left = {each.name for number, each in found.nodes.items() if number not in gone}
        if new.base is not None and (new.base not in found.nodes or new.base in gone):
            return None
        if name in left:
            return None
        if instead is not None:
            _drop(found, instead)
        size, why = len(new.content or b""), keeping.words(new.why)
        rest = (new.parent, new.base, new.form, new.line, size, why)
        node = Node(found.revision + 1, name, at, *rest)
        found.nodes[node.number], found.contents[node.number] = node, new.content
        _at_head(found, node.number, new.state, at)
        return node

    async def move(self, place: Place, number: int, state: bytes | None, at: datetime) -> bool:
        found = self._sets.get(place, _Set())
        if number not in found.nodes:
            return False
        found.nodes[number] = replace(found.nodes[number], is_lost=False)
        _at_head(found, number, state, keeping.certain(at))
        return True

    async def drop(self, place: Place, dropped: Dropped) -> bool:
        found = self._sets.get(place)
        if found is None or found.revision != dropped.revision:
            return False
        _drop(found, dropped)
        found.revision += 1
        return True

    async def lose(self, place: Place, number: int) -> None:
        found = self._sets.get(place, _Set())
        if number in found.nodes:
            found.nodes[number] = replace(found.nodes[number], is_lost=True)

    async def forget(self, place: Place) -> int:
        found = self._sets.get(place, _Set())
        number = len(found.nodes)
        found.nodes.clear()
        found.contents.clear()
        found.head = found.data = None
        found.revision += 1
        return number

    async def summaries(self) -> Sequence[Summary]:
        return [
            Summary(
                place,
                None if found.head is None else found.nodes[found.head].name,
                found.data is None,
                len(found.nodes),
                sum(each.size for each in found.nodes.values()),
                found.moved_at,
            )
            for place, found in sorted(self._sets.items())
            if found.nodes
        ]


def _drop(found: _Set, dropped: Dropped) -> None:
    for number, state in dropped.whole.items():
        whole = replace(found.nodes[number], form=Form.DATA, line=0, size=len(state), base=None)
        found.nodes[number], found.contents[number] = whole, state
    gone = frozenset(dropped.numbers)
    for number, each in list(found.nodes.items()):
        if each.base in gone:
            found.nodes[number] = replace(each, base=None)
    for number in gone:
        found.nodes.pop(number, None)
        found.contents.pop(number, None)


def _at_head(found: _Set, number: int, state: bytes | None, at: datetime) -> None:
    found.head, found.data, found.moved_at = number, state, at
    found.revision += 1
