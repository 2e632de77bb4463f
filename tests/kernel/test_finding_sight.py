"""Finding tools: each party is shown, and counts, only what it may call."""

from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import pytest

from comity.kernel import seen_tools
from comity.kernel.catalog import Offer
from comity.kernel.certainty import Certainty
from comity.rules.access import Access
from comity.rules.search import Query, Strategy
from comity.wire.errors import Unavailable
from comity.wire.parties import Actor
from comity.wire.security import Risk
from tests.kernel.finding_scene import ME, Scene, Vectors, allowed, denied

OTHER = Actor("agent:other")


async def count(scene: Scene, actor: Actor = ME) -> int:
    return (await scene.find("anything", actor)).total


async def test_nothing_is_found_or_counted_that_may_not_be_called() -> None:
    scene = Scene(allowed("files/read_file"), allowed("mail/*", OTHER.party))
    assert await scene.words("file mail weather") == ["read_file"]
    assert await count(scene) == 1
    assert sorted(await scene.names("file mail", OTHER)) == ["list_mails", "send_mail"]
    assert await count(scene, OTHER) == 2
    assert await scene.names("read_file", OTHER) == []
    assert await count(scene, Actor("agent:nobody")) == 0


async def test_the_categories_are_those_of_what_may_be_called_with_their_counts() -> None:
    scene = Scene(allowed("*/*"), allowed("mail/*", OTHER.party))
    mine = await scene.finder.categories(ME)
    assert {name: each.count for name, each in mine.items()} == {
        "filesystem": 3,
        "mail": 2,
        "weather": 1,
    }
    below = {name: each.count for name, each in mine["filesystem"].below.items()}
    assert below == {"read": 1, "search": 1, "write": 1}
    assert list(await scene.finder.categories(OTHER)) == ["mail"]


@pytest.mark.parametrize(
    ("grants", "seen"),
    [
        ((allowed("*/*"), denied("files/write_file")), 5),
        ((allowed("*/*"), denied("mail/*")), 4),
        ((allowed("files/*_file"),), 2),
        ((allowed("*/send_mail"),), 1),
        ((allowed("f*/*"), denied("f*/write_*")), 2),
        ((denied("*/*"), allowed("mail/*")), 2),
        ((), 0),
    ],
)
async def test_every_kind_of_grant_is_seen_as_the_gate_judges_it(grants: Any, seen: int) -> None:
    scene = Scene(*grants)
    assert await count(scene) == seen
    found = await scene.words("read write search file send list mail get forecast", most=50)
    assert len(found) == seen


async def test_the_bounds_of_a_credential_count() -> None:
    scene = Scene(allowed("*/*"))
    bounded = replace(ME, permissions=(("tools/call", "mail/*"),))
    assert await count(scene, bounded) == 2
    assert await count(scene) == 6


async def test_a_grant_that_is_taken_back_is_void_at_once() -> None:
    scene = Scene(allowed("*/*"))
    assert await count(scene) == 6
    scene.grant(allowed("mail/*"))
    assert await count(scene) == 2
    assert await scene.words("read file") == []
    scene.grant(allowed("*/*"))
    assert await count(scene) == 6


async def test_a_grant_that_ends_by_itself_shows_nothing_afterwards() -> None:
    scene = Scene()
    ends = scene.clock.now + timedelta(minutes=1)
    scene.grant(allowed("mail/*", expires_at=ends), allowed("files/read_file"))
    assert await count(scene) == 3
    scene.clock.pass_by(timedelta(minutes=2))
    assert await count(scene) == 1
    assert await scene.words("mail") == []


async def test_a_denial_that_ends_by_itself_hides_nothing_afterwards() -> None:
    scene = Scene()
    ends = scene.clock.now + timedelta(minutes=1)
    scene.grant(allowed("mail/*"), denied("mail/send_mail", expires_at=ends))
    assert await count(scene) == 1
    scene.clock.pass_by(timedelta(minutes=2))
    assert await count(scene) == 2


async def test_what_changes_for_others_is_not_worked_out_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene(allowed("*/*"))
    await count(scene)
    judged: list[str] = []
    looked = scene.grants.outlook

    def outlook(actor: Actor, verb: str, server: str) -> Any:
        judged.append(server)
        return looked(actor, verb, server)

    monkeypatch.setattr(scene.grants, "outlook", outlook)
    changed = {OTHER.party: [allowed("mail/*", OTHER.party)]}
    scene.grants.replace(scene.grants.latest.with_subjects(changed))
    assert await count(scene) == 6
    assert judged == []
    assert await count(scene, OTHER) == 2


async def test_tools_that_come_and_go_are_judged_one_by_one() -> None:
    scene = Scene(allowed("files/*"), denied("files/secret"))
    assert await count(scene) == 3
    scene.offer("files", read_file="Read.", secret="Read secrets.", new="Read news.")
    assert sorted(await scene.words("read")) == ["new", "read_file"]
    assert await count(scene) == 2
    scene.offer("mail", read="Read mail.")
    assert await count(scene) == 2
    scene.catalog.clear("files")
    assert await count(scene) == 0


async def test_nothing_that_is_not_known_for_sure_is_shown() -> None:
    seconds = 0.0
    scene = Scene(allowed("*/*"), certainty=Certainty(timedelta(seconds=1), lambda: seconds))
    assert await count(scene) == 6
    seconds = 5.0
    with pytest.raises(Unavailable):
        await count(scene)


@dataclass
class _Standing:
    refusal: object = None
    risk: Risk = Risk.SAFE


@dataclass
class _Tools:
    """Who looks after tools: what is said of each, by its name."""

    said: dict[str, _Standing] = field(default_factory=dict[str, _Standing])

    def standing(self, offer: Offer) -> _Standing:
        return self.said.get(offer.name, _Standing())


async def test_a_tool_that_nobody_can_use_now_is_not_found_until_it_can_be() -> None:
    tools = _Tools({"read_file": _Standing("changed")})
    scene = Scene(allowed("*/*"), tools=tools)
    assert await count(scene) == 5
    assert "read_file" not in await scene.words("read file")
    tools.said.clear()
    scene.finder.index.look_again("files")
    assert await count(scene) == 6
    tools.said["read_file"] = _Standing("changed again")
    # Nobody has told the index; but whoever shows it asks.
    assert "read_file" not in await scene.words("read file")


async def test_tools_are_filtered_by_the_risk_that_they_count_as() -> None:
    tools = _Tools({"write_file": _Standing(risk=Risk.DANGEROUS)})
    tools.said["send_mail"] = _Standing(risk=Risk.MODERATE)
    scene = Scene(allowed("*/*"), tools=tools)
    assert (await scene.find("file", risk_level_max=Risk.SAFE)).total == 4
    assert (await scene.find("file", risk_level_max=Risk.MODERATE)).total == 5
    assert (await scene.find("file", risk_level_max=Risk.DANGEROUS)).total == 6


async def test_only_so_many_parties_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seen_tools, "MOST_BYTES", 1)
    scene = Scene(allowed("*/*", "*"))
    for number in range(20):
        assert await count(scene, Actor(f"agent:{number}")) == 6
    assert scene.finder.remembered <= 4


async def test_a_model_is_asked_only_about_what_may_be_called() -> None:
    vectors = Vectors({"read_file": 0.9, "send_mail": 0.8})
    scene = Scene(allowed("mail/*"), vectors=vectors)
    assert await scene.names("anything at all") == ["send_mail"]
    assert (await scene.finder.find(ME, Query("x", Strategy.SEMANTIC))).total == 2


async def test_one_snapshot_of_grants_may_take_the_place_of_another_meanwhile() -> None:
    vectors = Vectors({"read_file": 0.9, "send_mail": 0.8})
    scene = Scene(allowed("*/*"), vectors=vectors)
    near = vectors.near

    async def slow(*asked: Any) -> Any:
        found = await near(*asked)
        scene.grants.replace(Access.of([allowed("mail/*")]))
        return found

    vectors.near = slow  # type: ignore[method-assign]
    assert await scene.names("anything at all") == ["send_mail"]
