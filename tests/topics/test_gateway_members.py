"""The gateway's own members of a topic: there as long as somebody wants them, and no longer."""

import logging
from datetime import timedelta

import pytest

from comity.mcp.actors import LOCAL, Actor
from comity.policy.grants import Effect, Grant
from comity.topics.gateway_members import TopicMembersConfig
from comity.topics.rules import JOIN
from comity.topics.topic import TopicMember, TopicMessage
from tests.support.topic_house import ANA, BEA, NOON, Granted
from tests.topics.furnished_house import FILES, INBOX, FurnishedHouse, furnished

NOTHING = TopicMembersConfig()


def there(house: FurnishedHouse) -> set[str]:
    return {seat.party for seat in house.place.room.local_members.values() if seat.is_built_in}


async def test_they_are_told_in_the_welcome_and_are_nobody_who_takes_a_place() -> None:
    async with furnished() as house:
        ear = await house.joins(ANA)
        told = {each["id"]: each["capabilities"] for each in ear.welcomes[0]["participants"]}
        assert told[FILES] == ["mcp/response:*", "mcp/request:notifications/resources/updated"]
        assert INBOX in told
        assert house.place.room.member_count == 1
        house.goes(ANA)
        assert "ops" not in house.topics.topics


async def test_a_topic_without_any_has_nobody_who_listens() -> None:
    async with furnished(furniture=NOTHING) as house:
        await house.joins(ANA)
        assert there(house) == set()
        assert house.place.room.listeners == []


async def test_a_grant_that_ends_by_itself_ends_a_servers_stay() -> None:
    soon = NOON + timedelta(minutes=1)
    grants = Granted([Grant(FILES, JOIN, "ops/*", Effect.ALLOW, expires_at=soon)])
    async with furnished(furniture=NOTHING, grants=grants) as house:
        ear = await house.joins(ANA)
        assert there(house) == {FILES, INBOX}
        house.time += 61
        house.furnishing.look(house.topics.topics)
        assert there(house) == set()
        assert ear.presence[-2:] == [("leave", FILES), ("leave", INBOX)]
        assert house.place.room.listeners == []


async def test_a_node_that_cannot_know_what_is_granted_mounts_nothing() -> None:
    async with furnished() as house:
        await house.joins(ANA)
        house.grants.is_away = True
        house.furnishing.on_grants_changed("")
        assert FILES not in there(house)
        house.grants.is_away = False
        house.furnishing.look(house.topics.topics)
        assert FILES in there(house)


async def test_a_server_that_is_no_more_is_in_no_topic_and_a_new_one_comes_in() -> None:
    async with furnished(furniture=TopicMembersConfig(("files", "web"))) as house:
        await house.joins(ANA)
        house.furnishing.look(house.topics.topics)
        assert there(house) == {FILES, INBOX}
        house.servers = ["web"]
        house.furnishing.look(house.topics.topics)
        assert there(house) == {"server:web", INBOX}


async def test_other_grants_of_other_parties_move_nobody() -> None:
    async with furnished() as house:
        ear = await house.joins(ANA)
        before = len(ear.texts)
        house.furnishing.on_grants_changed(BEA)
        house.furnishing.on_grants_changed(FILES)
        assert len(ear.texts) == before


async def test_a_topic_that_opens_again_is_furnished_anew() -> None:
    async with furnished() as house:
        await house.joins(ANA)
        first = house.place
        house.goes(ANA)
        await house.joins(BEA)
        assert house.place is not first
        assert there(house) == {FILES, INBOX}
        house.goes(BEA)
        house.furnishing.look(house.topics.topics)
        assert house.furnishing.topics == {}


async def test_a_bug_of_an_attendant_harms_no_member(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def on_message(
            self, managed_topic: object, member: TopicMember, message: TopicMessage
        ) -> None:
            raise ZeroDivisionError

    async with furnished() as house:
        ear = await house.joins(ANA)
        house.furnishing.handlers.insert(0, Broken())
        with caplog.at_level(logging.ERROR):
            house.calls(ANA, "e-1")
        await house.settled()
        assert "failed" in caplog.text
        assert [each["from"] for each in ear.heard("mcp/response:tools/call:write")] == [FILES]


async def test_several_members_whom_one_person_plays_are_that_person_to_grants() -> None:
    async with furnished() as house:
        await house.joins("local:alpha", credential=LOCAL.credential)
        house.calls("local:alpha", "e-1")
        await house.settled()
        assert house.desk.actors == [LOCAL.party]
        assert Actor("local:alpha") != LOCAL
