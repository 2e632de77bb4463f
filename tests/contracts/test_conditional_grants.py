"""Grants with a condition as every store keeps them: beside the plain one, and never without it."""

from dataclasses import replace
from typing import Any

import pytest

from comity.app.records import RecordStores
from comity.errors import MalformedMessage
from comity.mcp.actors import CALL
from comity.policy.grants import Effect, Grant
from tests.contracts.stores import Open

WHERE: dict[str, Any] = {
    "paths": {"/path": {"under": "/project"}, "/mode": {"in": ["r", "é\0", None, 1.0]}},
    "only": ["path", "mode"],
    "definition": "d1",
}
PLAIN = Grant("agent:ci", CALL, "files/read", Effect.ASK)
STANDING = replace(PLAIN, effect=Effect.ALLOW, where=WHERE)
OTHER = replace(STANDING, where={"paths": {}, "only": []})
NAMED = ("agent:ci", CALL, "files/read")


async def test_a_condition_comes_back_as_it_was_written(records: RecordStores, again: Open) -> None:
    (stored,) = await records.grants.put(STANDING)
    assert stored.where == WHERE
    other = await again()
    assert await other.grants.get(*NAMED, WHERE) == stored
    assert await other.grants.page(subjects=["agent:ci"]) == [stored]
    assert await other.grants.get(*NAMED) is None


async def test_one_of_each_condition_stands_beside_the_plain_one(records: RecordStores) -> None:
    stored = await records.grants.put(PLAIN, STANDING, OTHER)
    assert len({grant.id for grant in stored}) == 3
    turned = {name: WHERE[name] for name in reversed(WHERE)}
    (again,) = await records.grants.put(replace(STANDING, where=turned, justification="again"))
    assert again.id == stored[1].id
    found = await records.grants.page()
    assert {grant.id for grant in found} == {grant.id for grant in stored}
    assert await records.grants.get(*NAMED) == stored[0]


async def test_another_plain_one_takes_the_place_of_the_plain_one_alone(
    records: RecordStores,
) -> None:
    await records.grants.put(PLAIN, STANDING)
    await records.grants.put(replace(PLAIN, effect=Effect.DENY))
    found = {grant.effect: grant.where for grant in await records.grants.page()}
    assert found == {Effect.DENY: None, Effect.ALLOW: WHERE}


async def test_each_is_revoked_by_itself(records: RecordStores) -> None:
    plain, standing, other = await records.grants.put(PLAIN, STANDING, OTHER)
    before = (await records.changes.since(0)).version
    assert await records.grants.revoke(*NAMED, WHERE)
    assert not await records.grants.revoke(*NAMED, WHERE)
    assert (await records.changes.since(before)).version == before + 1
    assert {each.id for each in await records.grants.page()} == {plain.id, other.id}
    assert await records.grants.revoke(*NAMED)
    assert await records.grants.page() == [other]
    assert standing.id not in {plain.id, other.id}


@pytest.mark.parametrize(
    "wrong",
    [
        replace(STANDING, where={}),
        replace(STANDING, target="files/*"),
        replace(STANDING, effect=Effect.DENY),
        replace(STANDING, where={"paths": {"/a": {"is": "\ud800"}}, "only": ["a"]}),
    ],
)
async def test_one_that_could_not_be_a_standing_answer_is_not_kept(
    records: RecordStores, wrong: Grant
) -> None:
    with pytest.raises(MalformedMessage):
        await records.grants.put(PLAIN, wrong)
    assert await records.grants.page() == []
