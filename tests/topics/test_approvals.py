"""Approval requests in a topic: told once, without secrets, and answered by nobody who may not."""

from dataclasses import replace
from typing import Any

from comity.approvals.model import ANSWER_VERB, ApprovalDecision, ApprovalKind, ApprovalState
from comity.mcp.actors import LOCAL_OPERATOR, Actor, PrincipalKind
from comity.policy.grants import Effect, Grant
from comity.topics.gateway_members import TopicMembersConfig
from tests.support.cases import loop_over
from tests.support.inbox_scene import a_question
from tests.support.inline_store import inline_records
from tests.support.topic_house import ANA, BEA, CI, Ear, Heard
from tests.topics.furnished_house import INBOX, USUAL_GRANTS, FurnishedHouse, furnished, responses

ASKS = TopicMembersConfig(asks=True)
PUT = "mcp/proposal:tools/call:answer_approval"


def asks_inbox(house: FurnishedHouse, party: str, id: str, method: str, params: Any) -> None:
    payload = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    house.says(party, id, f"mcp/request:{method}", to=[INBOX], payload=payload)


def answers(house: FurnishedHouse, party: str, id: str, **said: Any) -> None:
    asks_inbox(house, party, id, "tools/call", {"name": "answer_approval", "arguments": said})


def last(ear: Ear) -> Heard:
    return responses(ear)[-1]["payload"]


async def test_an_ask_is_told_once_and_its_end_once() -> None:
    async with furnished(furniture=ASKS) as house:
        ear = await house.joins(ANA, kind=PrincipalKind.PERSON)
        ask = await house.approvals.open(a_question(house.approvals))
        house.topic_asks.on_approval_changed(ask)
        (put,) = ear.heard(PUT)
        shown = put["payload"]["params"]["_meta"]["dev.comity/approval"]
        assert (shown["id"], shown["about"]["arguments"]) == (ask.id, ask.about["arguments"])
        answers(house, ANA, "e-1", approval=ask.id, verdict="decline", reason="not now")
        await house.settled()
        assert "isError" not in last(ear)["result"]
        (ended,) = ear.heard("system/notice")
        assert ended["correlation_id"] == put["id"]
        assert (ended["payload"]["state"], ended["payload"]["approval"]) == ("denied", ask.id)


async def test_every_node_calls_an_ask_the_same_in_a_topic() -> None:
    store = inline_records().approval_requests
    async with (
        furnished(furniture=ASKS, asks=store) as one,
        furnished(furniture=ASKS, asks=store) as other,
    ):
        ears = [await one.joins(ANA), await other.joins(BEA)]
        ask = await one.approvals.open(a_question(one.approvals))
        other.topic_asks.on_approval_changed(ask)
        ids = {each["id"] for ear in ears for each in ear.heard(PUT)}
        assert len(ids) == 1


@loop_over(
    "kind", [ApprovalKind.INPUT, ApprovalKind.SELECT, ApprovalKind.SIGN_IN, ApprovalKind.NOTICE]
)
async def test_what_is_filled_in_is_asked_in_no_topic(kind: ApprovalKind) -> None:
    async with furnished(furniture=ASKS) as house:
        ear = await house.joins(ANA, kind=PrincipalKind.PERSON)
        ask = await house.approvals.open(a_question(house.approvals, kind=kind))
        answers(house, ANA, "e-1", approval=ask.id, verdict="accept")
        await house.settled()
        assert ear.heard(PUT) == []
        assert last(ear)["result"]["isError"]


async def test_a_topic_that_does_not_want_them_hears_of_no_ask() -> None:
    async with furnished() as house:
        ear = await house.joins(ANA)
        await house.approvals.open(a_question(house.approvals))
        assert ear.heard(PUT) == []


async def test_who_may_not_answer_is_told_why_and_nothing_changes() -> None:
    grants = (*USUAL_GRANTS, Grant(CI, ANSWER_VERB, "*", Effect.ALLOW))
    async with furnished(furniture=ASKS, granted=grants) as house:
        ask = await house.approvals.open(a_question(house.approvals))
        whose = {
            BEA: PrincipalKind.PERSON,
            CI: PrincipalKind.AGENT,
            "agent:other": PrincipalKind.AGENT,
        }
        for party, kind in whose.items():
            ear = await house.joins(party, kind=kind)
            answers(house, party, f"{party}-1", approval=ask.id, verdict="accept")
            await house.settled()
            assert last(ear)["result"]["isError"]
        assert (await house.approvals.store.get(ask.id)) == ask


@loop_over(
    "said",
    [
        {},
        {"approval": "x"},
        {"approval": 1, "verdict": "accept"},
        {"approval": "x", "verdict": "cancel"},
        {"approval": "x", "verdict": ["accept"]},
        {"approval": "x", "verdict": "accept", "reason": {}},
        {"approval": "absent", "verdict": "accept"},
    ],
)
async def test_what_is_no_answer_is_refused_in_words(said: dict[str, Any]) -> None:
    async with furnished(furniture=ASKS) as house:
        ear = await house.joins(ANA, kind=PrincipalKind.PERSON)
        answers(house, ANA, "e-1", **said)
        await house.settled()
        assert last(ear)["result"]["isError"]


async def test_it_is_an_mcp_server_with_two_tools() -> None:
    async with furnished(furniture=ASKS) as house:
        ear = await house.joins(ANA, kind=PrincipalKind.PERSON)
        for number, method in enumerate(("initialize", "ping", "tools/list", "resources/list")):
            asks_inbox(house, ANA, f"e-{number}", method, {})
            await house.settled()
        hello, ping, listed, refused = (each["payload"] for each in responses(ear))
        assert hello["result"]["serverInfo"]["name"] == "comity-inbox"
        assert ping["result"] == {}
        assert [tool["name"] for tool in listed["result"]["tools"]] == [
            "list_approvals",
            "answer_approval",
        ]
        assert refused["error"]["code"] == -32601
        asks_inbox(house, ANA, "e-9", "tools/call", {"name": "other"})
        await house.settled()
        assert last(ear)["error"]["code"] == -32602


async def test_a_list_holds_what_its_reader_may_see() -> None:
    async with furnished(furniture=ASKS) as house:
        await house.approvals.open(a_question(house.approvals))
        for party, count in ((ANA, 1), (BEA, 0)):
            ear = await house.joins(party, kind=PrincipalKind.PERSON)
            asks_inbox(house, party, f"{party}-1", "tools/call", {"name": "list_approvals"})
            await house.settled()
            assert len(last(ear)["result"]["structuredContent"]["approvals"]) == count


async def test_whom_one_person_plays_answers_for_another_but_not_for_itself() -> None:
    everything = Grant(LOCAL_OPERATOR.party, "*", "*", Effect.ALLOW)
    async with furnished(furniture=ASKS, granted=(everything,)) as house:
        played: dict[str, Any] = {
            "kind": PrincipalKind.PERSON,
            "credential": LOCAL_OPERATOR.credential,
        }
        ear = await house.joins("local:alpha", **played)
        own = a_question(house.approvals)
        ask = await house.approvals.open(replace(own, asker="local:alpha"))
        answers(house, "local:alpha", "e-1", approval=ask.id, verdict="accept")
        await house.settled()
        assert last(ear)["result"]["isError"]
        other = await house.joins("local:beta", **played)
        answers(house, "local:beta", "e-2", approval=ask.id, verdict=ApprovalDecision.ACCEPT)
        await house.settled()
        assert "isError" not in last(other)["result"]
        found = await house.approvals.store.get(ask.id)
        assert found is not None
        assert found.state is ApprovalState.APPROVED
        assert Actor("local:beta") != LOCAL_OPERATOR
