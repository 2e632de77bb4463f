"""Who hears an event: by what it is about, whose doing it is, and what somebody may know."""

from dataclasses import replace
from datetime import timedelta

import pytest

from comity.errors import EXHAUSTED, Unavailable
from comity.events.bus import MAX_PER_PARTY, EventBus
from comity.events.model import EventFilter, GatewayEvent, Severity
from comity.mcp.actors import Actor
from tests.events.event_house import ANA, CI, Ear, Sights, a_plane, event
from tests.support.carriers import settled
from tests.support.cases import loop_over
from tests.support.noted import NOON


async def test_who_follows_a_channel_hears_what_is_published_on_it_and_nothing_else() -> None:
    events, ear = a_plane(), Ear()
    following = ear.follow(events, "tool.started")
    events.publish(event("1", party=CI.party))
    events.publish(event("2", "tool.completed", party=CI.party))
    assert ear.ids == ["1"]
    following.close()
    following.close()
    events.publish(event("3", party=CI.party))
    assert ear.ids == ["1"]
    assert len(events) == 0


@loop_over(
    ("about", "agent", "person"),
    [
        ({"party": CI.party, "server": "files"}, True, True),
        ({"party": "agent:other", "server": "files"}, False, True),
        ({"party": "agent:other", "server": "mail"}, False, False),
        ({"server": "files"}, True, True),
        ({"server": "mail"}, False, True),
        ({}, False, True),
        ({"party": "agent:other"}, False, True),
        ({"source": "files", "server": "files"}, True, True),
        ({"source": "mail", "server": "mail"}, False, True),
        # What a server says of others is heard by those who may know the server itself.
        ({"source": "mail", "server": "mail", "party": CI.party}, False, True),
    ],
)
async def test_what_one_may_hear_follows_from_what_it_is_about(
    about: dict[str, str], agent: bool, person: bool
) -> None:
    events, of_agent, of_person = a_plane(), Ear(), Ear()
    of_agent.follow(events, "*")
    of_person.follow(events, "*", actor=ANA)
    events.publish(event(**about))
    assert (bool(of_agent.heard), bool(of_person.heard)) == (agent, person)


async def test_while_nobody_can_know_what_is_allowed_nobody_hears_of_others() -> None:
    sights = Sights({CI.party: {"files"}}, {CI.party: {"files", ""}}, is_away=True)
    events, ear = a_plane(sights), Ear()
    ear.follow(events, "*")
    events.publish(event("own", party=CI.party))
    for about in ({"server": "files"}, {"source": "files"}, {}, {"party": "agent:other"}):
        events.publish(event("others", **about))
    assert ear.ids == ["own"]


async def test_a_credential_that_counts_no_more_hears_nothing() -> None:
    counts: set[str] = {CI.party}
    events, ear = EventBus(Sights(), lambda actor: actor.party in counts, lambda: NOON), Ear()
    ear.follow(events, "*")
    late = replace(CI, expires_at=NOON)
    soon = replace(CI, expires_at=NOON + timedelta(seconds=1))
    expired, lasting = Ear(), Ear()
    expired.follow(events, "*", actor=late)
    lasting.follow(events, "*", actor=soon)
    events.publish(event("1", party=CI.party))
    counts.clear()
    events.publish(event("2", party=CI.party))
    assert (ear.ids, expired.ids, lasting.ids) == (["1"], [], ["1"])


async def test_an_event_of_nobodys_is_not_taken_for_the_doing_of_one_without_a_name() -> None:
    events, ear = a_plane(), Ear()
    ear.follow(events, "*", actor=Actor(""))
    events.publish(event())
    assert not ear.heard


async def test_a_servers_event_and_one_of_another_node_are_heard_once() -> None:
    events, ear = a_plane(), Ear()
    ear.follow(events, "*")
    told = event("x", "model.usage", source="files", server="files")
    events.publish(told)
    events.publish(told)
    events.deliver_remote(told)
    own = event("y", party=CI.party)
    events.deliver_remote(own)
    events.deliver_remote(own)
    assert ear.ids == ["x", "y"]


async def test_while_nobody_follows_nothing_is_told_to_anybody_not_even_once_somebody_does() -> (
    None
):
    events, ear = a_plane(), Ear()
    switched: list[bool] = []
    events.switches.append(switched.append)
    spanned: list[GatewayEvent] = []
    events.span = spanned.append
    events.publish(event("1", party=CI.party))
    assert not events.has_subscribers
    following = ear.follow(events, "*")
    await settled()
    events.publish(event("2", party=CI.party))
    assert [each.id for each in spanned] == ["2"]
    following.close()
    assert (ear.ids, switched[0], switched[-1]) == (["2"], True, False)
    events.set_wanted_remotely(True)
    events.publish(event("3", party=CI.party))
    assert [each.id for each in spanned] == ["2", "3"]


async def test_one_who_fails_keeps_nobody_else_from_hearing() -> None:
    events, ear = a_plane(), Ear()

    def fails(_: GatewayEvent) -> None:
        raise ValueError("a bug")

    events.subscribe(EventFilter(("*",)), CI, fails)
    ear.follow(events, "*")
    events.publish(event(party=CI.party))
    assert ear.ids == ["1"]


async def test_one_who_closes_another_while_it_is_told_is_told_no_more() -> None:
    events, ear = a_plane(), Ear()
    other = Ear()

    def hear(_: GatewayEvent) -> None:
        following.close()

    events.subscribe(EventFilter(("*",)), CI, hear)
    following = other.follow(events, "*")
    ear.follow(events, "*")
    events.publish(event(party=CI.party))
    assert (other.ids, ear.ids) == ([], ["1"])


async def test_one_party_can_follow_so_often_and_others_all_the_same() -> None:
    events = a_plane()
    ears = [Ear().follow(events, "tool.*") for _ in range(MAX_PER_PARTY)]
    with pytest.raises(Unavailable) as refused:
        Ear().follow(events, "tool.*")
    assert refused.value.fault is EXHAUSTED
    Ear().follow(events, "tool.*", actor=ANA)
    ears[0].close()
    Ear().follow(events, "tool.*")


async def test_a_severity_below_what_is_wanted_is_not_heard() -> None:
    events, heard = a_plane(), list[str]()
    wanted = EventFilter(("*",), Severity.WARNING)
    events.subscribe(wanted, CI, lambda told: heard.append(told.severity))
    for severity in Severity:
        events.publish(replace(event(party=CI.party), severity=severity))
    assert heard == ["warning", "error", "critical"]


async def test_the_gateway_tells_by_itself_with_the_channels_own_severity() -> None:
    events, ear = a_plane(), Ear()
    events.publish_own("system.source_cut_off", {})
    ear.follow(events, "system.*")
    events.publish_own("system.source_cut_off", {"server_id": "files"}, "files")
    events.publish_own("system.source_cut_off", {"server_id": "mail"}, "mail")
    (told,) = ear.heard
    assert (told.severity, told.server, told.source) == ("warning", "files", "")
    assert len({events.mint() for _ in range(100)}) == 100
