"""A denial tells nobody what there is; and a long catalogue stalls nobody who sees little of it."""

import base64
import random
import time
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from comity.kernel.call import Call
from comity.kernel.catalog import LONGEST_NAME, MOST_UNSEEN, Catalog, Kind, Offer
from comity.kernel.gate import Gate
from comity.kernel.grants import Grants
from comity.kernel.outbox import Outbox
from comity.rules.access import Access, Decided, DefaultPolicy
from comity.rules.names import public_name
from comity.wire import jsonrpc
from comity.wire.errors import MalformedMessage
from comity.wire.grants import Effect, Grant
from comity.wire.parties import Actor

SERVERS = ("files", "web", "a.b")
NAMES = ("read", "write", "x" * 80, "odd name", "a__b")
CI = Actor("agent:ci")
NOW = datetime(2026, 11, 15, tzinfo=UTC)
MANY = 100_000


def tool(server: str, name: str) -> Offer:
    return Offer(public_name(server, name), server, name, b"{}")


def resource(server: str, uri: str) -> Offer:
    return Offer(uri, server, uri, b"{}")


def call(actor: Actor = CI) -> Call:
    outbox = Outbox()
    outbox.actor = actor
    return Call(jsonrpc.request(1, "tools/call", {}), outbox, None, 0)


def access(chance: random.Random) -> Access:
    targets = ["*", "*/read", "files/*", "files/re*", "web/*", "web/read", "a.b/*", "a.b/odd name"]
    grants = [
        Grant("agent:ci", verb, chance.choice(targets), chance.choice([*Effect]))
        for verb in ("tools/call", "resources/read")
        for _ in range(chance.randint(0, 4))
    ]
    default = chance.choice([DefaultPolicy.OPT_IN, DefaultPolicy.OPT_IN, DefaultPolicy.OPT_OUT])
    return Access.of(grants, Decided(default=default))


def told(gate: Gate, asked: str) -> str | Offer:
    """What is answered about a name: an offer, or the words of the refusal."""
    try:
        if ":" in asked:
            return gate.find_resource(call(), asked)
        return gate.find(call(), Kind.TOOL, asked)
    except MalformedMessage as refused:
        return f"{refused.fault.error_type}: {refused}"


@pytest.mark.parametrize("seed", range(40))
def test_what_is_denied_is_answered_as_if_it_were_not_there(seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311  # no secret
    judged, denied = access(chance), 0
    full, grants = Catalog(), Grants(judged)
    offers = {Kind.TOOL: NAMES, Kind.RESOURCE: ("x:1", "x:2")}
    make = {Kind.TOOL: tool, Kind.RESOURCE: resource}
    verbs = {Kind.TOOL: "tools/call", Kind.RESOURCE: "resources/read"}
    seen = Catalog()
    for server in SERVERS:
        for kind, names in offers.items():
            every = [make[kind](server, name) for name in names]
            full.put(server, kind, every)
            allowed = [
                each
                for each in every
                if judged.judge(CI, verbs[kind], server, each.name, NOW).effect is not Effect.DENY
            ]
            denied += len(every) - len(allowed)
            seen.put(server, kind, allowed)
    asked = [public_name(server, name) for server in SERVERS for name in NAMES]
    for name in [*asked, *NAMES, "x:1", "x:2", "x:3", "nothing", "files__nothing", ""]:
        assert told(Gate(full, grants), name) == told(Gate(seen, grants), name), name
    assert denied or judged.decided.default is DefaultPolicy.OPT_OUT or judged.subjects


def test_a_name_of_several_servers_in_sight_is_told_with_what_to_say_instead() -> None:
    catalog = Catalog()
    for server in ("a", "b", "c"):
        catalog.put(server, Kind.TOOL, [tool(server, "read")])
    grants = [Grant("agent:ci", "tools/call", target, Effect.ALLOW) for target in ("a/*", "b/*")]
    answer = told(Gate(catalog, Grants(Access.of(grants))), "read")
    assert isinstance(answer, str)
    assert "a__read or b__read" in answer
    assert "c__read" not in answer


@pytest.fixture(scope="module")
def long_catalog() -> Catalog:
    catalog = Catalog()
    for number in range(100):
        server = f"s{number:03}"
        catalog.put(server, Kind.TOOL, [tool(server, f"t{n:04}") for n in range(MANY // 100)])
    catalog.put("one", Kind.TOOL, [tool("one", f"u{n:05}") for n in range(MANY)])
    return catalog


def pages(gate: Gate) -> tuple[int, int, float]:
    """How much is listed, on how many pages, and the longest time that one took."""
    cursor, found, count, longest = None, 0, 0, 0.0
    while True:
        began = time.process_time()
        definitions, cursor = gate.page(CI, Kind.TOOL, lambda _: True, cursor)
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
    found, count, longest = pages(Gate(long_catalog, Grants(Access.of(grants))))
    assert found == listed
    assert count <= 1 + MANY // MOST_UNSEEN
    # Some ten milliseconds where nothing else runs; this only tells a bounded page from a long one.
    assert longest < 1.0


def test_a_cursor_into_what_is_hidden_names_nothing(long_catalog: Catalog) -> None:
    entry = Grant("agent:ci", "tools/call", "one/*99999", Effect.ALLOW)
    gate = Gate(long_catalog, Grants(Access.of([entry])))
    definitions, cursor = gate.page(CI, Kind.TOOL, lambda _: True, None)
    assert definitions == []
    assert cursor is not None
    assert b"u0" not in base64.urlsafe_b64decode(cursor)


def test_a_name_longer_than_any_that_is_listed_is_refused_before_it_is_judged() -> None:
    gate = Gate(Catalog(), Grants(Access.of([])))
    longest = "x" * LONGEST_NAME
    asked: tuple[Callable[[str], object], ...] = (
        lambda name: gate.find(call(), Kind.TOOL, name),
        lambda name: gate.find_resource(call(), name),
        lambda name: gate.find_template(call(), name),
        lambda name: gate.find_tool(call(), "files", name),
        lambda name: gate.demand(call(), Kind.TOOL, "files", name),
        lambda name: gate.find_readable(call(), name),
    )
    for ask in asked:
        with pytest.raises(MalformedMessage, match="nothing of that name"):
            ask(longest)
        with pytest.raises(MalformedMessage, match="at most 8192 characters"):
            ask(longest + "x")
