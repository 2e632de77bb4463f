"""Proposals in a topic: people approve them, and one of all who could do them does."""

from dataclasses import replace
from typing import Any

import pytest

from comity.approvals.model import ApprovalDecision, ApprovalRequest, ApprovalState
from comity.audit.events import AuditType
from comity.errors import MalformedMessage, Unavailable
from comity.mcp.actors import CALL, Actor, PrincipalKind
from comity.mcp.entries import CatalogEntry
from comity.policy.grants import Effect, Grant
from comity.topics.envelope import decode_envelope
from comity.topics.gateway_members import TopicMembersConfig
from comity.topics.rules import TopicAccess as Entrance
from comity.topics.server_members import TopicClientStream, good_for
from comity.topics.topic import TopicMessage, TopicSettings
from tests.support.asking import Standing, Tools
from tests.support.cases import loop_over
from tests.support.inline_store import inline_records
from tests.support.topic_house import ANA, BEA, CI, envelope
from tests.topics.furnished_house import (
    FILES,
    INBOX,
    KEY,
    USUAL_GRANTS,
    FurnishedHouse,
    a_call,
    furnished,
    notices,
    responses,
)

PERSON = Actor(ANA, PrincipalKind.PERSON)
WITH = {"path": "/a"}
UNDER_A = {"paths": {"/path": {"under": "/a"}}, "only": ["path"]}
LATER = TopicSettings(Entrance.PUBLIC, ("mcp/*", "chat"), is_strict=False)


async def asks_of(house: FurnishedHouse, *states: ApprovalState) -> list[ApprovalRequest]:
    assert house.asks is not None
    return list(await house.asks.page(states))


async def proposed(house: FurnishedHouse, id: str = "p-1") -> ApprovalRequest:
    """A proposal of an agent's that waits for people."""
    house.proposes(CI, id)
    await house.settled()
    return (await asks_of(house, ApprovalState.PENDING))[-1]


async def test_an_approved_proposal_is_called_by_the_inbox_in_the_name_of_who_may() -> None:
    async with furnished() as house:
        ear = await house.joins(CI)
        ask = await proposed(house)
        assert (ask.asker, ask.server, ask.tool) == (CI, "files", "write")
        assert house.desk.asked == []
        await house.approvals.answer(PERSON, ask.id, ApprovalDecision.ACCEPT)
        await house.settled()
        assert house.desk.actors == [ANA]
        (answer,) = responses(ear)
        assert answer["to"] == [INBOX, CI]
        (used,) = await asks_of(house, ApprovalState.CONSUMED)
        assert used.call == answer["correlation_id"]
        assert house.types().count("proposal_fulfilled") == 1


async def test_nothing_is_kept_of_what_is_proposed_but_what_people_read() -> None:
    async with furnished() as house:
        await house.joins(CI)
        params = {"name": "write", "arguments": {"note": "hunter2hunter2", "password": "abc"}}
        payload = {"method": "tools/call", "params": params}
        house.says(CI, "p-1", "mcp/proposal:tools/call:write", to=[FILES], payload=payload)
        await house.settled()
        assert "hunter2" not in str(await asks_of(house))
        assert "'abc'" not in str(await asks_of(house))
        assert "hunter2" not in str(house.events)


async def test_of_a_member_and_an_answer_the_first_counts_in_any_order() -> None:
    for member_is_first in (True, False):
        async with furnished() as house:
            ear = await house.joins(CI)
            await house.joins(BEA)
            ask = await proposed(house)
            if member_is_first:
                house.calls(BEA, "f-1", about="p-1")
                await house.settled()
                with pytest.raises(MalformedMessage, match="already withdrawn"):
                    await house.approvals.answer(PERSON, ask.id, ApprovalDecision.ACCEPT)
            else:
                await house.approvals.answer(PERSON, ask.id, ApprovalDecision.ACCEPT)
                house.calls(BEA, "f-1", about="p-1")
            await house.settled()
            assert len(house.desk.asked) == 1
            assert house.types().count("proposal_repeated") == (0 if member_is_first else 1)
            assert CI in responses(ear)[0]["to"] or CI in responses(ear)[-1]["to"]


class Nodes:
    """Two nodes with one store, of which each hears what is said at the other."""

    def __init__(self, one: FurnishedHouse, other: FurnishedHouse) -> None:
        self.one, self.other = one, other

    def passed_on(self, data: bytes) -> None:
        said = TopicMessage(data, decode_envelope(data), is_from_here=False)
        self.other.place.room.deliver(said)


async def test_of_two_nodes_only_one_does_what_was_proposed() -> None:
    for winner in ("member", "answer"):
        store = inline_records().approval_requests
        async with furnished(asks=store) as one, furnished(asks=store) as other:
            await one.joins(CI)
            await other.joins(BEA)
            ask = await proposed(one)
            payload = {"method": "tools/call", "params": a_call()["params"]}
            kind = "mcp/proposal:tools/call:write"
            Nodes(one, other).passed_on(envelope(CI, "p-1", kind, to=[FILES], payload=payload))
            if winner == "answer":
                await one.approvals.answer(PERSON, ask.id, ApprovalDecision.ACCEPT)
                await one.settled()
            other.calls(BEA, "f-1", about="p-1")
            await other.settled()
            if winner == "member":
                with pytest.raises(MalformedMessage):
                    await one.approvals.answer(PERSON, ask.id, ApprovalDecision.ACCEPT)
                await one.settled()
            ran = (len(one.desk.asked), len(other.desk.asked))
            assert ran == ((0, 1) if winner == "member" else (1, 0))
            assert ("proposal_repeated" in other.types()) is (winner == "answer")


async def test_a_store_that_is_away_is_asked_again_before_anything_is_done() -> None:
    async with furnished() as house:
        await house.joins(CI)
        ask = await proposed(house)
        use = house.approvals.consume

        async def away(request: ApprovalRequest, call: str) -> ApprovalRequest | None:
            raise Unavailable("the store does not answer")

        house.approvals.consume = away
        await house.approvals.answer(PERSON, ask.id, ApprovalDecision.ACCEPT)
        await house.settled()
        assert house.desk.asked == []
        house.approvals.consume = use
        house.proposals.look()
        await house.settled()
        assert len(house.desk.asked) == 1


async def test_a_fulfilment_that_was_refused_before_it_left_is_none() -> None:
    async with furnished() as house:
        await house.joins(CI)
        await house.joins(BEA)
        await house.joins(ANA)
        await proposed(house)
        house.desk.refuses = True
        house.calls(BEA, "f-1", about="p-1")
        await house.settled()
        house.desk.refuses = False
        house.calls(ANA, "f-2", about="p-1")
        await house.settled()
        assert house.desk.actors == [BEA, ANA]
        assert "proposal_repeated" not in house.types()


async def test_who_may_not_call_it_takes_it_from_nobody() -> None:
    async with furnished(granted=USUAL_GRANTS[:2]) as house:
        await house.joins(CI)
        await house.joins(BEA)
        ask = await proposed(house)
        house.calls(BEA, "f-1", about="p-1")
        await house.settled()
        assert (await asks_of(house, ApprovalState.PENDING)) == [ask]


async def test_what_only_refers_to_a_proposal_does_not_fulfil_it() -> None:
    async with furnished() as house:
        await house.joins(CI)
        await house.joins(BEA)
        ask = await proposed(house)
        payload = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
        more: dict[str, Any] = {"to": [FILES], "payload": payload, "correlation_id": "p-1"}
        house.says(BEA, "e-1", "mcp/request:tools/list", **more)
        house.says(BEA, "e-2", "mcp/request:tools/list", **{**more, "to": [CI]})
        house.says(BEA, "e-3", "chat", correlation_id="p-1")
        await house.settled()
        assert (await asks_of(house, ApprovalState.PENDING)) == [ask]


async def test_a_fulfilment_for_another_member_ends_the_ask_and_a_second_is_noted() -> None:
    async with furnished(furniture=TopicMembersConfig((), asks=True)) as house:
        await house.joins(CI)
        await house.joins(BEA)
        house.proposes(CI, "p-1", ["agent:worker"])
        await house.settled()
        (ask,) = await asks_of(house, ApprovalState.PENDING)
        assert (ask.server, ask.tool) == ("topic.ops", "agent:worker/write")
        for id in ("f-1", "f-2"):
            more: dict[str, Any] = {"to": ["agent:worker"], "correlation_id": "p-1"}
            house.says(BEA, id, "mcp/request:tools/call:write", payload=a_call(), **more)
        await house.settled()
        assert [each.state for each in await asks_of(house)] == [ApprovalState.WITHDRAWN]
        assert house.types().count("proposal_fulfilled") == 1
        assert house.types().count("proposal_repeated") == 1


@loop_over(
    ("by", "kind", "state", "notice"),
    [
        (CI, "mcp/withdraw", ApprovalState.WITHDRAWN, "withdrawn"),
        (ANA, "mcp/reject", ApprovalState.DENIED, "denied"),
        (BEA, "mcp/withdraw", ApprovalState.PENDING, "pending"),
        (BEA, "mcp/reject", ApprovalState.PENDING, "pending"),
        (CI, "mcp/reject", ApprovalState.PENDING, "pending"),
    ],
)
async def test_later_kinds_end_a_proposal_where_their_sender_may(
    by: str, kind: str, state: ApprovalState, notice: str
) -> None:
    async with furnished(terms=LATER) as house:
        ear = await house.joins(CI)
        for party in (ANA, BEA):
            await house.joins(party, kind=PrincipalKind.PERSON)
        await proposed(house)
        house.says(by, "e-9", kind, correlation_id="p-1")
        await house.settled()
        assert [each.state for each in await asks_of(house)] == [state]
        assert notices(ear)[-1] == notice


async def test_who_asks_too_much_is_told_so() -> None:
    async with furnished() as house:
        ear = await house.joins(CI)
        most = house.approvals.settings.max_open_per_principal
        for number in range(most + 1):
            house.proposes(CI, f"p-{number}")
        await house.settled()
        assert notices(ear).count("pending") == most
        assert notices(ear).count("unasked") == 1


async def test_what_was_approved_is_bound_to_the_tool_as_it_was_then() -> None:
    async with furnished(tools=Tools()) as house:
        await house.joins(CI)
        ask = await proposed(house)
        assert ask.about["definition"] == "write first"
        assert ask.about["risk"] == "dangerous"
        await house.approvals.answer(PERSON, ask.id, ApprovalDecision.ACCEPT)
        await house.settled()
        outbox = house.desk.outboxes[0]
        assert isinstance(outbox, TopicClientStream)
        assert outbox.approval is not None
        assert outbox.approval.ask == ask.id
        assert outbox.approval.digest == good_for("files", "write", "write first", WITH, KEY)
        assert outbox.approval.digest != good_for("files", "write", "write second", WITH, KEY)


async def test_a_standing_answer_never_lets_go_what_is_asked_about_each_time() -> None:
    grants = (
        *USUAL_GRANTS,
        Grant(CI, CALL, "files/write", Effect.ASK),
        Grant(CI, CALL, "files/write", Effect.ALLOW, where=UNDER_A),
    )
    async with furnished(tools=Tools(), granted=grants) as house:
        await house.joins(CI)
        await proposed(house)
        assert house.desk.asked == []


class Mild(Tools):
    """Of these tools a person may answer all calls at once."""

    def review_of(self, entry: CatalogEntry) -> Standing:
        return replace(super().review_of(entry), is_always_confirmed=False)


async def test_what_a_standing_answer_has_let_go_is_done_and_no_member_does_it_again() -> None:
    where = Grant(CI, CALL, "files/write", Effect.ALLOW, "g-1", where=UNDER_A)
    grants = (*USUAL_GRANTS, Grant(CI, CALL, "files/write", Effect.ASK), where)
    async with furnished(tools=Mild(), granted=grants) as house:
        await house.joins(CI)
        ear = await house.joins(BEA)
        house.proposes(CI, "p-1")
        await house.settled()
        assert house.desk.actors == [CI]
        house.calls(BEA, "f-1", about="p-1")
        await house.settled()
        assert house.desk.actors == [CI]
        assert "runs only once" in responses(ear)[-1]["payload"]["error"]["message"]
        (noted,) = [each for each in house.events if each.type == AuditType.PROPOSAL_FULFILLED]
        assert noted.details["grant"] == "g-1"
        assert await asks_of(house) == []


async def test_who_comes_second_to_the_store_does_nothing() -> None:
    async with furnished() as house:
        await house.joins(CI)
        ask = await proposed(house)
        use, asks = house.approvals.consume, house.approvals.store

        async def too_late(request: ApprovalRequest, call: str) -> ApprovalRequest | None:
            await asks.end(request.id, ApprovalState.WITHDRAWN, house.now)
            return await use(request, call)

        house.approvals.consume = too_late
        await house.approvals.answer(PERSON, ask.id, ApprovalDecision.ACCEPT)
        await house.settled()
        assert house.desk.asked == []


async def test_a_topic_that_everybody_left_has_its_asks_withdrawn() -> None:
    async with furnished() as house:
        await house.joins(CI)
        await proposed(house)
        house.goes(CI)
        house.furnishing.look(house.topics.topics)
        await house.settled()
        assert [each.state for each in await asks_of(house)] == [ApprovalState.WITHDRAWN]


async def test_what_nobody_answers_ends_after_five_minutes_and_is_forgotten() -> None:
    async with furnished() as house:
        ear = await house.joins(CI)
        await proposed(house)
        house.time += 299
        assert await house.approvals.expire_overdue() == 0
        house.time += 2
        assert await house.approvals.expire_overdue() == 1
        assert notices(ear) == ["pending", "expired"]
        house.time += 400
        house.proposals.look()
        house.calls(CI, "f-1", about="p-1")
        await house.settled()
        assert "proposal_repeated" not in house.types()


async def test_a_proposal_to_nobody_in_particular_finds_the_one_server_that_offers_it() -> None:
    async with furnished(furniture=TopicMembersConfig(("files",), asks=True)) as house:
        ear = await house.joins(CI)
        house.proposes(CI, "p-1", ())
        house.proposes(CI, "p-2", ["agent:a", "agent:b"])
        house.proposes(CI, "p-3", [CI])
        await house.settled()
        (ask,) = await asks_of(house)
        assert ask.server == "files"
        assert sorted(notices(ear)) == ["pending", "unaddressed", "unaddressed"]
