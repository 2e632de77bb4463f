"""Every client's toolbelt: whose it is, how many are kept, and what is let go with them."""

from comity.adapters.token_counts import ESTIMATE
from comity.kernel import toolbelts
from comity.kernel.call import Call
from comity.kernel.catalog import Catalog, Kind, Offer
from comity.kernel.gate import Gate
from comity.kernel.outbox import Outbox
from comity.kernel.sessions import Session
from comity.kernel.toolbelts import Outfit, Toolbelts
from comity.rules.toolbelt import Budget, Pinned
from comity.wire import jsonrpc
from comity.wire.parties import Actor


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def shelf(catalog: Catalog, *names: str, about: str = "x" * 400) -> list[Offer]:
    offers = [
        Offer(
            f"s__{name}", "s", name, jsonrpc.to_json({"name": f"s__{name}", "description": about})
        )
        for name in names
    ]
    catalog.put("s", Kind.TOOL, offers)
    return offers


def belts(catalog: Catalog, outfit: Outfit | None = None, clock: Clock | None = None) -> Toolbelts:
    return Toolbelts(Gate(catalog), ESTIMATE, clock or Clock(), outfit or Outfit())


def call(actor: Actor, session: Session | None = None) -> Call:
    outbox = Outbox()
    outbox.actor = actor
    return Call(jsonrpc.request(1, "tools/call", {"name": "x"}), outbox, session, 0.0)


def test_parties_that_are_idle_are_forgotten_and_so_are_too_many() -> None:
    catalog, clock = Catalog(), Clock()
    (tool,) = shelf(catalog, "a")
    kept = belts(catalog, Outfit(idle_seconds=100), clock)
    kept.use(call(Actor("agent:old")), tool)
    clock.now = 99.0
    kept.use(call(Actor("agent:new")), tool)
    assert len(kept) == 2
    clock.now = 101.0
    assert list(kept.of(call(Actor("agent:new"))).tools.cached) == ["s__a"]
    assert len(kept) == 1
    assert not kept.of(call(Actor("agent:old"))).tools.cached


def test_no_more_belts_than_the_bound() -> None:
    kept = belts(Catalog())
    for number in range(toolbelts.MOST_BELTS + 50):
        kept.of(call(Actor(f"agent:{number}")))
    assert len(kept) == toolbelts.MOST_BELTS


def test_two_keys_of_one_party_that_may_do_different_things_share_no_belt() -> None:
    catalog = Catalog()
    (tool,) = shelf(catalog, "a")
    kept = belts(catalog)
    kept.use(call(Actor("agent:a")), tool)
    bound = Actor("agent:a", permissions=(("tools/call", "s/b"),))
    assert not kept.of(call(bound)).tools.cached


async def test_a_sessions_belt_ends_with_it() -> None:
    catalog = Catalog()
    (tool,) = shelf(catalog, "a")
    kept, session = belts(catalog), Session("", 0.0, "agent:a")
    kept.use(call(Actor("agent:a"), session), tool)
    assert len(kept) == 1
    await session.close()
    assert len(kept) == 0


def test_a_tool_that_is_too_large_for_the_cache_is_used_and_not_kept() -> None:
    catalog = Catalog()
    small, _ = shelf(catalog, "a", "b")
    (large,) = (Offer("s__l", "s", "l", b'{"name":"s__l","x":"' + b"x" * 20_000 + b'"}'),)
    kept, who = belts(catalog), call(Actor("agent:a"))
    kept.use(who, small)
    kept.use(who, large)
    assert list(kept.of(who).tools.cached) == ["s__a"]


def test_nothing_is_held_but_the_definitions_of_what_is_in_it() -> None:
    catalog = Catalog()
    offers = shelf(catalog, *(f"t{number}" for number in range(50)))
    outfit = Outfit(Budget(cache_limit=500), [Pinned("*", (("s", "t0"),))])
    kept, who = belts(catalog, outfit), call(Actor("agent:a"))
    for offer in offers:
        kept.use(who, offer)
    belt = kept.of(who)
    assert belt.definitions.keys() == {"s__t0", *belt.tools.cached}
    assert belt.tools.total <= 500 + belt.tools.pinned["s__t0"]


def test_it_is_told_once_that_a_list_is_another_one_until_it_is_listed_anew() -> None:
    catalog = Catalog()
    one, other = shelf(catalog, "a", "b")
    kept, who = belts(catalog), call(Actor("agent:a"))
    told: list[str] = []
    kept.told = lambda actor, session: told.append(actor.party)
    kept.listed(kept.of(who))
    kept.use(who, one)
    kept.use(who, one)
    assert told == ["agent:a"]
    assert kept.is_other(Actor("agent:a"), None)
    kept.listed(kept.of(who))
    assert not kept.is_other(Actor("agent:a"), None)
    kept.use(who, one)
    assert told == ["agent:a"]
    kept.use(who, other)
    assert told == ["agent:a"] * 2


def test_an_order_that_use_does_not_change() -> None:
    catalog = Catalog()
    offers = shelf(catalog, "b", "a", "c")
    kept, who = belts(catalog), call(Actor("agent:a"))
    for offer in offers:
        kept.use(who, offer)
    before = kept.listed(kept.of(who))
    kept.use(who, offers[0])
    assert kept.listed(kept.of(who)) == before == sorted(before)
