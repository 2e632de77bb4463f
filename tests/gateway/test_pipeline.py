"""The call pipeline: the order of its last steps, and what a denial tells."""

import base64
import random
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from comity.catalog.catalog import MAX_HIDDEN_PER_PAGE, MAX_NAME_LENGTH, Catalog
from comity.errors import (
    APPROVAL_REQUIRED,
    RATE_LIMITED,
    TOOL_DISABLED,
    VALIDATION_BLOCKED,
    MalformedMessage,
)
from comity.gateway.pipeline import CallGate, CallPipeline, CallPlan, Outcome, PlanCache
from comity.mcp import jsonrpc, protocol
from comity.mcp.actors import Actor
from comity.mcp.entries import CatalogEntry, EntryKind
from comity.mcp.jsonrpc import Frame
from comity.mcp.protocol import public_name
from comity.mcp.refusals import Refusal
from comity.policy.grants import (
    Decision,
    DefaultPolicy,
    Effect,
    Grant,
    GrantSet,
    StaticRules,
    TargetSpecificity,
)
from comity.policy.snapshot import GrantSnapshot
from comity.sessions.calls import Call
from comity.sessions.client_streams import ClientStream
from tests.support.asking import Standing, Tools
from tests.support.cases import loop_over

OFFER = CatalogEntry("files__delete", "files", "delete", b'{"name":"delete"}')
FRAME = jsonrpc.make_request(1, protocol.CALL_TOOL, {"name": "delete", "arguments": {"path": "x"}})
HELD = cast("Any", object())


class Parts:
    """Each step of the gate, with what it says, and in which order they were asked."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.limit: Refusal | Awaitable[Refusal | None] | None = None
        self.fault: Refusal | Awaitable[Refusal | None] | None = None
        self.answer: Grant | None = None
        self.continues = False
        self.check = self._inspect

    def count_call(self, *_: object) -> Refusal | Awaitable[Refusal | None] | None:
        self.seen.append("limits")
        return self.limit

    has_limits = True

    def check_for(self, _: object) -> Callable[[object], Any]:
        return self.check

    def _inspect(self, _: object) -> Any:
        self.seen.append("inspection")
        return self.fault

    def standing_answer(self, *_: object, **__: object) -> Grant | None:
        self.seen.append("answers")
        return self.answer

    def hold(self, *_: object) -> Any:
        self.seen.append("person")
        return HELD

    def is_next_round(self, *_: object) -> bool:
        return self.continues

    def without_prompt_reply(self, call: Call, frame: Frame) -> Frame:
        self.seen.append("taken out")
        return frame

    def record_intent(self, *_: object) -> None:
        self.seen.append("record")


class Confirmed(Tools):
    """Tools that need a person unless they were granted by name, or always."""

    always = False

    def review_of(self, entry: CatalogEntry) -> Standing:
        return Standing("digest", 1, self.refusal, is_always_confirmed=self.always)

    def risk_reasons_of(self, entry: CatalogEntry) -> list[str]:
        return []


def _made(parts: Parts) -> CallPipeline:
    tools = cast("Any", Confirmed())

    def renew(call: Call, plan: CallPlan) -> CallPlan:
        return admission.make_plan(plan.entry, call.decision)

    part = cast("Any", parts)
    admission = CallPipeline(tools, part, part, part, renew=renew)
    admission.approvals = admission.intent_recorder = cast("Any", parts)
    return admission


def _call(
    effect: Effect = Effect.ALLOW, level: TargetSpecificity = TargetSpecificity.SERVER
) -> Call:
    call = Call(FRAME, ClientStream(), None, 0)
    call.decision = Decision(effect, "", level=level)
    return call


def _begun(admission: CallPipeline, call: Call) -> Outcome | Awaitable[Outcome]:
    return admission.run(call, admission.make_plan(OFFER, call.decision), FRAME)


async def _outcome(admission: CallPipeline, call: Call | None = None) -> Outcome:
    found = _begun(admission, call or _call())
    return await found if isinstance(found, Awaitable) else found


async def test_a_person_is_asked_only_about_what_could_go_on_at_once() -> None:
    parts = Parts()
    assert await _outcome(_made(parts)) is HELD
    assert parts.seen == ["limits", "inspection", "answers", "person"]


async def test_a_tool_that_was_granted_itself_is_recorded_and_goes_on() -> None:
    parts = Parts()
    assert await _outcome(_made(parts), _call(level=TargetSpecificity.OFFER)) is None
    assert parts.seen == ["limits", "inspection", "record"]


async def test_a_grant_that_says_ask_asks_though_it_names_the_tool() -> None:
    parts = Parts()
    assert await _outcome(_made(parts), _call(Effect.ASK, TargetSpecificity.OFFER)) is HELD


async def test_whoever_is_refused_costs_nobodys_time() -> None:
    for spoil, fault, seen in (
        ("standing", TOOL_DISABLED, []),
        ("limit", RATE_LIMITED, ["limits"]),
        ("fault", VALIDATION_BLOCKED, ["limits", "inspection"]),
    ):
        parts = Parts()
        admission = _made(parts)
        refusal = Refusal(fault, "no")
        if spoil == "standing":
            assert isinstance(admission.tools, Confirmed)
            admission.tools.refusal = refusal
        else:
            setattr(parts, spoil, refusal)
        assert await _outcome(admission) is refusal
        assert parts.seen == seen


async def test_what_was_looked_at_for_a_while_is_looked_at_as_it_is_then() -> None:
    parts = Parts()
    admission = _made(parts)
    refusal = Refusal(TOOL_DISABLED, "set aside meanwhile")

    async def slowly() -> Refusal | None:
        assert isinstance(admission.tools, Confirmed)
        admission.tools.refusal = refusal
        return None

    parts.fault = slowly()
    assert await _outcome(admission) is refusal
    assert "person" not in parts.seen


async def test_a_call_that_waits_to_be_counted_passes_every_later_stage() -> None:
    async def later(refusal: Refusal | None = None) -> Refusal | None:
        return refusal

    no = Refusal(RATE_LIMITED, "no")
    invalid = Refusal(VALIDATION_BLOCKED, "no")
    seen = ["limits", "inspection", "answers", "person"]
    for limit, fault, expected, stages in (
        (later(), None, HELD, seen),
        (later(), later(), HELD, seen),
        (later(), invalid, invalid, seen[:2]),
        (later(), later(invalid), invalid, seen[:2]),
        (later(no), None, no, seen[:1]),
    ):
        parts = Parts()
        parts.limit, parts.fault = limit, fault
        assert await _outcome(_made(parts)) is expected
        assert parts.seen == stages


async def test_standing_answer_counts_unless_a_tool_is_always_confirmed() -> None:
    parts = Parts()
    parts.answer = Grant("agent:ci", "tools/call", "files/*", Effect.ALLOW, id="g1")
    call = _call()
    assert await _outcome(_made(parts), call) is None
    assert call.permitted_by == "g1"
    admission = _made(parts)
    assert isinstance(admission.tools, Confirmed)
    admission.tools.always = True
    assert await _outcome(admission) is HELD


async def test_where_nobody_can_be_asked_nothing_goes_on() -> None:
    admission = _made(Parts())
    admission.approvals = None
    refusal = await _outcome(admission)
    assert isinstance(refusal, Refusal)
    assert refusal.fault is APPROVAL_REQUIRED


def test_arguments_are_an_object_or_nothing() -> None:
    assert jsonrpc.make_request(1, protocol.CALL_TOOL, {"name": "x"}).arguments == {}
    with pytest.raises(MalformedMessage):
        _ = jsonrpc.make_request(1, protocol.CALL_TOOL, {"name": "x", "arguments": []}).arguments


class Reach:
    """Says how far a call may reach, and holds what is beyond."""

    def __init__(self, found: object) -> None:
        self.found = found
        self.held = 0

    def applies_to(self, _: object) -> bool:
        return True

    def check_scope(self, *_: object) -> Any:
        return self.found

    def describe(self, beyond: object) -> dict[str, object]:
        return {"label": beyond}

    def hold(self, *_: object) -> Any:
        self.held += 1
        return HELD


@loop_over(
    ("level", "answer", "seen", "held"),
    [
        # Granted by name: only its reach is asked about.
        (TargetSpecificity.OFFER, None, ["limits", "inspection"], 1),
        # A person looks at the very call in any case; the one question is enough.
        (TargetSpecificity.SERVER, None, ["limits", "inspection", "answers", "person"], 0),
        # What stands for all calls like this says nothing of how far it reaches.
        (TargetSpecificity.SERVER, Grant("a", "tools/call", "*", Effect.ALLOW), None, 1),
    ],
)
def test_what_reaches_beyond_its_bounds_is_asked_about_once(
    level: TargetSpecificity, answer: Grant | None, seen: list[str] | None, held: int
) -> None:
    parts, reach = Parts(), Reach("beyond")
    parts.answer = answer
    admission = _made(parts)
    admission.scope_checker = cast("Any", reach)
    assert _begun(admission, _call(level=level)) is HELD
    assert reach.held == held
    assert seen is None or parts.seen == seen


def test_how_far_a_call_reaches_is_asked_about_once_for_all_its_attempts() -> None:
    parts, reach = Parts(), Reach("beyond")
    admission = _made(parts)
    admission.scope_checker = cast("Any", reach)
    call = _call(level=TargetSpecificity.OFFER)
    call.approved_scope = "beyond"
    assert _begun(admission, call) is None
    reach.found = "further"
    assert _begun(admission, call) is HELD


def test_what_may_not_be_reached_is_refused_before_anybody_is_asked() -> None:
    parts = Parts()
    admission = _made(parts)
    refusal = Refusal(TOOL_DISABLED, "not enabled")
    admission.scope_checker = cast("Any", Reach(refusal))
    assert _begun(admission, _call()) is refusal
    assert parts.seen == ["limits", "inspection"]


def test_where_nobody_looks_after_tools_nobody_can_be_asked_how_far_one_reaches() -> None:
    admission = CallPipeline(renew=lambda _, plan: plan)
    admission.scope_checker = cast("Any", Reach("beyond"))
    found = _begun(admission, _call(level=TargetSpecificity.OFFER))
    assert isinstance(found, Refusal)
    assert found.fault is APPROVAL_REQUIRED
    admission.scope_checker = cast("Any", Reach(None))
    assert _begun(admission, _call(level=TargetSpecificity.OFFER)) is None


# Denials and long catalogs.


SERVERS = ("files", "web", "a.b")
NAMES = ("read", "write", "x" * 80, "odd name", "a__b")
CI = Actor("agent:ci")
NOW = datetime(2026, 11, 15, tzinfo=UTC)
MANY = 100_000


def tool(server: str, name: str) -> CatalogEntry:
    return CatalogEntry(public_name(server, name), server, name, b"{}")


def resource(server: str, uri: str) -> CatalogEntry:
    return CatalogEntry(uri, server, uri, b"{}")


def call(actor: Actor = CI) -> Call:
    outbox = ClientStream()
    outbox.actor = actor
    return Call(jsonrpc.make_request(1, "tools/call", {}), outbox, None, 0)


def access(chance: random.Random) -> GrantSet:
    targets = ["*", "*/read", "files/*", "files/re*", "web/*", "web/read", "a.b/*", "a.b/odd name"]
    grants = [
        Grant("agent:ci", verb, chance.choice(targets), chance.choice([*Effect]))
        for verb in ("tools/call", "resources/read")
        for _ in range(chance.randint(0, 4))
    ]
    default = chance.choice([DefaultPolicy.DENY, DefaultPolicy.DENY, DefaultPolicy.ALLOW])
    return GrantSet.from_grants(grants, StaticRules(default=default))


def told(gate: CallGate, asked: str) -> str | CatalogEntry:
    """What is answered about a name: an offer, or the words of the refusal."""
    try:
        if ":" in asked:
            return gate.find_resource(call(), asked)
        return gate.find(call(), EntryKind.TOOL, asked)
    except MalformedMessage as refused:
        return f"{refused.fault.error_type}: {refused}"


@loop_over("seed", range(40))
def test_a_server_out_of_sight_is_answered_as_if_it_were_not_there(seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311  # no secret
    judged = access(chance)
    full, grants = Catalog(), GrantSnapshot(judged, lambda: NOW)
    seen = Catalog()
    in_sight = {server for server in SERVERS if grants.may_know_server(CI, server)}
    for server in SERVERS:
        tools = [tool(server, name) for name in NAMES]
        resources = [resource(server, uri) for uri in ("x:1", "x:2")]
        # Where a file opens everything, a denial tells which id a prefix stands for.
        seen.add_server(server)
        for catalog in (full, seen) if server in in_sight else (full,):
            catalog.put(server, EntryKind.TOOL, tools)
            catalog.put(server, EntryKind.RESOURCE, resources)
    asked = [public_name(server, name) for server in SERVERS for name in NAMES]
    written = [f"{server}__{name}" for server in SERVERS for name in ("read", "nothing")]
    for name in [*asked, *written, *NAMES, "x:1", "x:2", "x:3", "nothing", ""]:
        assert told(CallGate(full, grants), name) == told(CallGate(seen, grants), name), name
    for server in SERVERS:
        answer = told(CallGate(full, grants), public_name(server, "nothing"))
        fault = "tool_not_found" if server in in_sight else "access_denied"
        assert str(answer).startswith(fault), (server, answer)


@loop_over(
    ("granted", "name", "fault"),
    [
        # Of a server in sight, a denied name and an unknown one are told apart.
        ("files/read", "files__write", "access_denied"),
        ("files/read", "files__nope", "tool_not_found"),
        ("files/read", "write", "access_denied"),
        ("files/read", "nope", "tool_not_found"),
        ("files/read", "a.b__nope", "access_denied"),
        ("a.b/*", "a.b__nope", "tool_not_found"),
        # Of a server out of sight, nothing is told.
        ("files/read", "only_web", "tool_not_found"),
        ("files/read", "web__only_web", "access_denied"),
        ("files/read", "web__nope", "access_denied"),
        ("files/read", "nowhere__nope", "access_denied"),
        ("*", "nope", "tool_not_found"),
        ("*", "nowhere__nope", "tool_not_found"),
        (None, "nope", "access_denied"),
        (None, "read", "access_denied"),
        (None, "files__nope", "access_denied"),
    ],
)
def test_a_name_is_unknown_to_whom_its_server_is_in_sight(
    granted: str | None, name: str, fault: str
) -> None:
    catalog = Catalog()
    for server in SERVERS:
        names = [*NAMES[:2], *(["only_web"] if server == "web" else [])]
        catalog.put(server, EntryKind.TOOL, [tool(server, each) for each in names])
    grants = [] if granted is None else [Grant("agent:ci", "tools/call", granted, Effect.ALLOW)]
    gate = CallGate(catalog, GrantSnapshot(GrantSet.from_grants(grants)))
    answer = told(gate, name)
    assert str(answer).startswith(f"{fault}: "), answer


def test_a_name_of_several_servers_in_sight_is_told_with_what_to_say_instead() -> None:
    catalog = Catalog()
    for server in ("a", "b", "c"):
        catalog.put(server, EntryKind.TOOL, [tool(server, "read")])
    grants = [Grant("agent:ci", "tools/call", target, Effect.ALLOW) for target in ("a/*", "b/*")]
    answer = told(CallGate(catalog, GrantSnapshot(GrantSet.from_grants(grants))), "read")
    assert isinstance(answer, str)
    assert "a__read or b__read" in answer
    assert "c__read" not in answer


def test_a_bare_name_is_found_again_for_each_call() -> None:
    catalog, times = Catalog(), [NOW]
    for server in ("a", "b"):
        catalog.put(server, EntryKind.TOOL, [tool(server, "read")])
    grants = [Grant("agent:ci", "tools/call", target, Effect.ALLOW) for target in ("a/*", "b/*")]
    until = NOW + timedelta(hours=1)
    grants.append(Grant("agent:ci", "tools/call", "b/read", Effect.DENY, expires_at=until))
    snapshot = GrantSnapshot(GrantSet.from_grants(grants), lambda: times[-1])
    cache = PlanCache(
        snapshot.generation,
        lambda actor, entry, view: snapshot.never_expires(actor, entry.server, entry.name, view),
    )
    gate = CallGate(catalog, snapshot, plan_cache=cache)
    for name in ("read", "a__read"):
        assert gate.plan_for(call(), "", name).entry.server == "a"
    times.append(until)
    # Time passes, and no grant changes. Now the actor sees the tool of the other server too.
    with pytest.raises(MalformedMessage, match="several servers"):
        gate.plan_for(call(), "", "read")
    assert gate.plan_for(call(), "", "a__read").entry.server == "a"


@pytest.fixture(scope="module")
def long_catalog() -> Catalog:
    catalog = Catalog()
    for number in range(100):
        server = f"s{number:03}"
        catalog.put(server, EntryKind.TOOL, [tool(server, f"t{n:04}") for n in range(MANY // 100)])
    catalog.put("one", EntryKind.TOOL, [tool("one", f"u{n:05}") for n in range(MANY)])
    return catalog


def pages(gate: CallGate) -> tuple[int, int, float]:
    """How much is listed, on how many pages, and the longest time that one took."""
    cursor, found, count, longest = None, 0, 0, 0.0
    while True:
        began = time.process_time()
        definitions, cursor = gate.page(CI, EntryKind.TOOL, lambda _: True, cursor)
        longest = max(longest, time.process_time() - began)
        found, count = found + len(definitions), count + 1
        if cursor is None:
            return found, count, longest


@pytest.mark.parametrize(
    ("targets", "listed"),
    [
        ([f"s{n:03}/t{n:04}" for n in range(10)], 10),
        (["*/t0007"], 100),
        ([f"one/u{n:05}" for n in range(0, MANY, 10_000)], 10),
        (["one/u0000*"], 10),
        (["s007/*"], 1000),
        ([], 0),
    ],
    ids=["named", "anywhere", "among many", "pattern", "one server", "nothing"],
)
def test_whoever_sees_little_of_a_hundred_thousand_tools_stalls_nobody(
    long_catalog: Catalog, targets: list[str], listed: int
) -> None:
    grants = [Grant("agent:ci", "tools/call", target, Effect.ALLOW) for target in targets]
    found, count, longest = pages(
        CallGate(long_catalog, GrantSnapshot(GrantSet.from_grants(grants)))
    )
    assert found == listed
    assert count <= 1 + MANY // MAX_HIDDEN_PER_PAGE
    # Some ten milliseconds where nothing else runs; this only tells a bounded page from a long one.
    assert longest < 1.0


def test_a_cursor_into_what_is_hidden_names_nothing(long_catalog: Catalog) -> None:
    entry = Grant("agent:ci", "tools/call", "one/*99999", Effect.ALLOW)
    gate = CallGate(long_catalog, GrantSnapshot(GrantSet.from_grants([entry])))
    definitions, cursor = gate.page(CI, EntryKind.TOOL, lambda _: True, None)
    assert definitions == []
    assert cursor is not None
    assert b"u0" not in base64.urlsafe_b64decode(cursor)


def test_a_name_longer_than_any_that_is_listed_is_refused_before_it_is_judged() -> None:
    gate = CallGate(Catalog(), GrantSnapshot(GrantSet.from_grants([])))
    longest = "x" * MAX_NAME_LENGTH
    asked: tuple[Callable[[str], object], ...] = (
        lambda name: gate.find(call(), EntryKind.TOOL, name),
        lambda name: gate.find_resource(call(), name),
        lambda name: gate.find_template(call(), name),
        lambda name: gate.find_tool(call(), "files", name),
        lambda name: gate.require_entry(call(), EntryKind.TOOL, "files", name),
        lambda name: gate.find_readable(call(), name),
    )
    for ask in asked:
        with pytest.raises(MalformedMessage, match="nothing with this name"):
            ask(longest)
        with pytest.raises(MalformedMessage, match="at most 8192 characters"):
            ask(longest + "x")


def test_a_name_that_another_server_uses_too_ends_the_plan_of_the_first() -> None:
    catalog = Catalog()
    catalog.put("a", EntryKind.TOOL, [tool("a", "read")])
    grants = [Grant("agent:ci", "tools/call", "*", Effect.ALLOW)]
    snapshot = GrantSnapshot(GrantSet.from_grants(grants))
    catalog.watch(lambda server, _: snapshot.generation.advance_for((f"server:{server}",)))

    def is_lasting(_: Actor, __: CatalogEntry, ___: str) -> bool:
        return True

    gate = CallGate(catalog, snapshot, plan_cache=PlanCache(snapshot.generation, is_lasting))
    plan = gate.plan_for(call(), "", "read")
    catalog.put("b", EntryKind.TOOL, [tool("b", "write")])
    assert gate.plan_for(call(), "", "read") is plan
    catalog.put("b", EntryKind.TOOL, [tool("b", "read")])
    with pytest.raises(MalformedMessage, match="several servers"):
        gate.plan_for(call(), "", "read")
