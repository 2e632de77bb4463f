"""Whatever servers leave, and whoever goes back, the host's state is that of a plain model.

The model has neither rows nor patches in a line: each checkpoint of it is its whole state. What is
dropped, the host says; the model says that what counts, and what is new, never is.
"""

import asyncio
import json
from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any, cast, override

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from msgspec import Raw

from comity.errors import CHECKPOINT_UNKNOWN, UPSTREAM_FAILED, MalformedMessage
from comity.live.host import LiveServer
from comity.live.settings import StateSettings
from comity.live.state.json_patch import JsonPatches
from comity.live.state.model import (
    CheckpointRemoval,
    CheckpointTree,
    StateCheckpoint,
    StateKey,
    StateStore,
)
from comity.live.state.service import StateService
from comity.live.state.store import SqlStates
from comity.mcp.mcpl import FeatureSet, FeatureUse
from tests.contracts.stores import STORES
from tests.pace import at_length
from tests.support.inline_store import inline_parts, inline_records

pytestmark = pytest.mark.integration

BEGAN = datetime(2026, 7, 28, tzinfo=UTC)
HOUR = timedelta(hours=1)
MOST = 5
WITHIN = 40 * HOUR
MOST_BYTES = 400
PAD = "x" * 300
"""So long that patches are kept as such, and one more of it is too much."""

NAMES = [f"chk_{number}" for number in range(14)]
EXAMPLES = at_length({"sqlite": 30, "postgres": 30}, {"sqlite": 8, "postgres": 8})

type Value = dict[str, Any]
type Patch = list[tuple[dict[str, Any], str]]
name_of = st.sampled_from(NAMES)
parent_of = st.integers(-2, 30)
"""One of those that are kept, the newest first; or none; or one that nobody knows."""

keys = st.sampled_from("abc")
numbers = st.integers(0, 9)


def _value(rest: dict[str, int], is_long: int) -> Value:
    return {**rest, "pad": PAD} if is_long else {**rest}


values = st.builds(_value, st.dictionaries(keys, numbers), st.integers(0, 4))
puts: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {"op": st.sampled_from(["add", "replace"]), "value": numbers | numbers | st.just(PAD)}
)
others: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {"op": st.sampled_from(["test", "remove"]), "value": st.integers(0, 9)}
)
copies: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {"op": st.sampled_from(["copy", "move"]), "from": keys | st.just("pad")}
)
patches = st.lists(st.tuples(puts | puts | others | copies, keys), max_size=3)


def wire(patch: Patch) -> Raw:
    said = [
        {**operation, "path": f"/{key}"}
        | ({"from": f"/{operation['from']}"} if "from" in operation else {})
        for operation, key in patch
    ]
    return Raw(json.dumps(said).encode())


def outcome(value: Value, patch: Patch) -> Value | None:
    """What a patch makes of a flat object, in other words than the library's; None if it fails."""
    made = dict(value)
    for operation, key in patch:
        match operation["op"]:
            case "add":
                made[key] = operation["value"]
            case "replace" if key in made:
                made[key] = operation["value"]
            case "remove" if key in made:
                del made[key]
            case "test" if made.get(key) == operation["value"]:
                pass
            case "copy" if operation["from"] in made:
                made[key] = made[operation["from"]]
            case "move" if operation["from"] in made:
                made[key] = made.pop(operation["from"]) if key != operation["from"] else made[key]
            case _:
                return None
    return made


@dataclass
class Peer:
    """The server, as far as a rollback asks it; what it answers is decided by the test."""

    server: str
    says: str = "yes"

    def require(self, feature: str, use: FeatureUse) -> FeatureSet:
        return FeatureSet(feature, "", frozenset({use}), has_rollback=True)

    async def request(self, method: str, params: dict[str, Any], timeout: timedelta) -> Raw:
        assert (method, params["featureSet"]) == ("state/rollback", "notes")
        if self.says == "lost":
            raise MalformedMessage("gone", CHECKPOINT_UNKNOWN)
        if self.says == "broken":
            raise MalformedMessage("broken", UPSTREAM_FAILED)
        named = "another" if self.says == "another" else params["checkpoint"]
        return Raw(json.dumps({"checkpoint": named, "success": self.says != "no"}).encode())


@dataclass
class Model:
    """Every checkpoint that is kept, the oldest first, with its whole state; None where opaque."""

    kept: dict[str, Value | None] = field(default_factory=dict[str, Value | None])
    head: str | None = None

    def parent(self, which: int) -> str | None:
        if which < 0 or not self.kept:
            return None if which == -2 else "elsewhere"
        return list(self.kept)[-1 - which % len(self.kept)]

    def put(self, name: str, value: Value | None) -> None:
        self.kept.pop(name, None)
        self.kept[name] = value
        self.head = name

    def leave(self, name: str, value: Value | None, *, is_opaque: bool) -> None:
        """A call has left this: what is named again with the same state, or none, stays."""
        is_known = name in self.kept
        if is_known and (is_opaque or (value is not None and self.kept[name] == value)):
            self.head = name
        else:
            self.put(name, value)


class Host(RuleBasedStateMachine):
    """The host and its model, step by step."""

    records: StateStore
    runner: asyncio.Runner
    begun = count()

    @initialize()
    def begin(self) -> None:
        self.place = StateKey(f"server-{next(self.begun)}", "notes")
        self.now = BEGAN
        self.states = self.make()
        self.model = Model()
        self.at: dict[str, datetime] = {}

    def make(self) -> StateService:
        options = StateSettings(MOST_BYTES, MOST, WITHIN)
        return StateService(self.records, JsonPatches(), options, lambda: self.now)

    def run_now[T](self, doing: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(doing)

    def keep(self, name: str, parent: str | None, data: Raw | None, patch: Raw | None) -> None:
        before = set(self.model.kept)
        said = StateCheckpoint(name, parent, data, patch)
        self.now += HOUR
        node = self.run_now(self.states.keep(self.place, said))
        assert node.name == name
        if name not in before or node.at == self.now:
            self.at[name] = self.now

    @rule(name=name_of, parent=parent_of, value=values)
    def leaves_data(self, name: str, parent: int, value: Value) -> None:
        self.keep(name, self.model.parent(parent), Raw(json.dumps(value).encode()), None)
        self.model.leave(name, value, is_opaque=False)
        self.agree()

    @rule(name=name_of, parent=parent_of, patch=patches)
    def leaves_a_patch(self, name: str, parent: int, patch: Patch) -> None:
        named = self.model.parent(parent)
        before = None if named is None else self.model.kept.get(named)
        made = None if before is None else outcome(before, patch)
        if made is not None and len(json.dumps(made, separators=(",", ":"))) > MOST_BYTES:
            made = None
        self.keep(name, named, None, wire(patch))
        self.model.leave(name, made, is_opaque=False)
        self.agree()

    @rule(name=name_of, value=values, patch=patches)
    def leaves_data_and_a_patch(self, name: str, value: Value, patch: Patch) -> None:
        self.keep(name, name, Raw(json.dumps(value).encode()), wire(patch))
        self.model.leave(name, value, is_opaque=False)
        self.agree()

    @rule(name=name_of, parent=parent_of)
    def leaves_a_name(self, name: str, parent: int) -> None:
        self.keep(name, self.model.parent(parent), None, None)
        self.model.leave(name, None, is_opaque=True)
        self.agree()

    @rule(name=name_of, parent=st.integers(0, 30), key=keys, number=numbers)
    def leaves_a_patch_that_fits(self, name: str, parent: int, key: str, number: int) -> None:
        self.leaves_a_patch(name, parent, [({"op": "add", "value": number}, key)])

    @rule(name=name_of, said=st.sampled_from(["long", "list", "text"]))
    def leaves_what_is_no_state(self, name: str, said: str) -> None:
        wrong = {"long": None, "list": Raw(b'{"op":"add"}'), "text": Raw(b'"patch"')}[said]
        data = Raw(json.dumps({"a": "x" * MOST_BYTES}).encode()) if wrong is None else None
        self.keep(name, self.model.head, data, wrong)
        self.model.leave(name, None, is_opaque=False)
        self.agree()

    @rule(name=name_of, says=st.sampled_from(["yes", "yes", "no", "lost", "broken", "another"]))
    def rolls_back(self, name: str, says: str) -> None:
        self.now += HOUR
        by = cast("LiveServer", Peer(self.place.server, says))
        doing = self.states.roll_back(by, "notes", name)
        if name in self.model.kept and says in ("yes", "no"):
            assert self.run_now(doing).success == (says == "yes")
            self.model.head = name if says == "yes" else self.model.head
        else:
            with pytest.raises(MalformedMessage) as caught:
                self.run_now(doing)
            is_unknown = name not in self.model.kept or says == "lost"
            assert (caught.value.fault is CHECKPOINT_UNKNOWN) == is_unknown
        self.agree()

    @rule(hours=st.sampled_from([1, 2, 5, 60]))
    def drops_what_is_old(self, hours: int) -> None:
        self.now += hours * HOUR
        self.run_now(self.states.prune_all())
        self.agree()

    @rule(really=st.integers(0, 12))
    def forgets_everything(self, really: int) -> None:
        if really:
            return
        assert self.run_now(self.states.forget(self.place)) == len(self.model.kept)
        self.model = Model()
        self.agree()

    def agree(self) -> None:
        self.run_now(self._agree())

    async def _agree(self) -> None:
        tree = await self.states.tree(self.place)
        here = {each.name: each for each in tree.nodes.values()}
        self._let_go(tree)
        assert set(here) == set(self.model.kept)
        for name, value in self.model.kept.items():
            found = await self.states.state_of(self.place, here[name])
            assert (None if found is None else json.loads(found)) == value, name
        current = await self.states.current(self.place)
        if self.model.head is None:
            assert current is None
            return
        assert current is not None
        value = self.model.kept[self.model.head]
        held = None if current.data is None else json.loads(current.data)
        assert (current.name, held) == (self.model.head, value)

    def _let_go(self, tree: CheckpointTree) -> None:
        """What is dropped is old, and never what counts; what is kept is no more than it may be."""
        gone = set(self.model.kept) - {each.name for each in tree.nodes.values()}
        newest = list(self.model.kept)[-MOST:]
        for name in gone:
            is_old = self.now - self.at[name] > WITHIN
            assert name != self.model.head
            assert is_old or name not in newest, name
            del self.model.kept[name]
        assert len(tree.nodes) <= MOST + 1


def played(machine: type[Host], examples: int, phases: Sequence[Phase] = tuple(Phase)) -> None:
    bounds = settings(
        max_examples=examples,
        phases=phases,
        stateful_step_count=30,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    run_state_machine_as_test(machine, settings=bounds)


@pytest.mark.requirement("MCPL-8.3-apply", "MCPL-8.2-tree")
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("store", EXAMPLES)
def test_the_state_of_a_host_is_that_of_a_plain_model(store: str, tmp_path: Path) -> None:
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()

        async def opened() -> StateStore:
            again = await stack.enter_async_context(STORES[store](tmp_path))
            return (await again()).states

        try:
            Host.records, Host.runner = runner.run(opened()), runner
            # The shortest way to a failure takes many minutes; CI shows the first one.
            played(Host, EXAMPLES[store], at_length(tuple(Phase), (Phase.generate,)))
        finally:
            runner.run(stack.aclose())


class NaiveRecords(SqlStates):
    """Drops what others rest on, as if patches stood by themselves."""

    @override
    async def drop(self, state_key: StateKey, dropped: CheckpointRemoval) -> bool:
        resting = dict.fromkeys(dropped.whole, b"{}")
        return await super().drop(state_key, replace(dropped, whole=resting))


class HastyPatches(JsonPatches):
    """Gives what a patch made before it failed."""

    @override
    def apply(self, data: bytes, patches: Sequence[bytes], maximum: int) -> bytes:
        try:
            return super().apply(data, patches, maximum)
        except MalformedMessage:
            return data


class Forgetful(Host):
    @override
    def make(self) -> StateService:
        return replace_in(super().make(), _store=NaiveRecords(*inline_parts()))


class Hasty(Host):
    @override
    def make(self) -> StateService:
        return replace_in(super().make(), _patcher=HastyPatches())


def replace_in(states: StateService, **parts: object) -> StateService:
    for name, part in parts.items():
        setattr(states, name, part)
    return states


@pytest.mark.timeout(600)
@pytest.mark.parametrize("naive", [Forgetful, Hasty])
def test_the_model_finds_out_who_keeps_the_wrong_state(naive: type[Host]) -> None:
    with asyncio.Runner() as runner:
        naive.records, naive.runner = inline_records().states, runner
        with pytest.raises((AssertionError, ExceptionGroup)):
            # That it is found is enough: nobody reads the shortest way to it.
            played(naive, 400, [Phase.generate])
