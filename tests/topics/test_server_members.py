"""A server in a topic: bounded, moderated, and not asked about what was approved as a proposal."""

import asyncio
from typing import Any

from comity.approvals.client_prompts import LongWaitPrompt
from comity.approvals.model import ApprovalDecision, ApprovalRequest
from comity.errors import UPSTREAM_FAILED
from comity.mcp import jsonrpc, protocol
from comity.sessions.client_streams import ClientStream
from comity.topics.server_members import (
    MAX_CALLS_PER_MEMBER,
    InTopics,
    PriorApproval,
    TopicClientStream,
    good_for,
)
from tests.support.asking import AGENT, ARGUMENTS, DONE, Bed, asking
from tests.support.asking import ANA as APPROVER
from tests.support.cases import loop_over
from tests.support.desks import MODERN
from tests.support.topic_house import ANA, BEA
from tests.topics.furnished_house import FILES, INBOX, a_call, furnished, notices, responses


async def test_so_many_calls_of_one_member_are_under_way_at_most() -> None:
    async with furnished() as house:
        ear, other = await house.joins(ANA), await house.joins(BEA)
        house.desk.answer = None
        for number in range(MAX_CALLS_PER_MEMBER + 2):
            house.calls(ANA, f"e-{number}")
        house.calls(BEA, "b-1")
        errors = [each for each in responses(ear) if "error" in each["payload"]]
        assert [each["correlation_id"] for each in errors] == [
            f"e-{MAX_CALLS_PER_MEMBER}",
            f"e-{MAX_CALLS_PER_MEMBER + 1}",
        ]
        while len(house.desk.asked) < MAX_CALLS_PER_MEMBER + 1:
            await asyncio.sleep(0)
        for number in range(len(house.desk.asked)):
            house.desk.finish({"content": []}, number)
        await house.settled()
        house.calls(ANA, "again")
        while len(house.desk.asked) < MAX_CALLS_PER_MEMBER + 2:
            await asyncio.sleep(0)
        house.desk.finish({"content": []})
        await house.settled()
        assert "result" in responses(ear)[-1]["payload"]
        assert [each["correlation_id"] for each in responses(other) if each["to"] == [BEA]] == [
            "b-1"
        ]


async def test_what_a_server_answers_is_without_secrets_and_a_list_as_it_is() -> None:
    async with furnished() as house:
        ear = await house.joins(ANA)
        house.desk.answer = {"content": [{"type": "text", "text": "it is hunter2hunter2"}]}
        house.calls(ANA, "e-1")
        await house.settled()
        assert "hunter2" not in str(responses(ear))
        house.desk.answer = {"content": [{"type": "text", "text": "a b " * 20_000 + "hunter2" * 2}]}
        house.calls(ANA, "e-3")
        await house.settled()
        assert "hunter2" not in str(responses(ear))
        assert "a b a b" in str(responses(ear)[-1])
        listed = {"tools": [{"name": "x", "inputSchema": {"properties": {"password": {"a": 1}}}}]}
        house.desk.answer = listed
        payload = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
        house.says(ANA, "e-2", "mcp/request:tools/list", to=[FILES], payload=payload)
        await house.settled()
        assert responses(ear)[-1]["payload"]["result"] == listed


def deep(levels: int) -> object:
    return [deep(levels - 1)] if levels else 1


@loop_over(
    "answer",
    [{"resultType": "input_required"}, {"content": "x" * 2_000_000}, {"a": deep(62)}],
    ids=["a round", "too long", "too deep"],
)
async def test_what_cannot_be_told_in_a_topic_is_told_as_that(answer: dict[str, object]) -> None:
    async with furnished() as house:
        ear = await house.joins(ANA)
        house.desk.answer = answer
        house.calls(ANA, "e-1")
        await house.settled()
        (told,) = responses(ear)
        assert told["payload"]["id"] == 7
        assert told["payload"]["error"]["code"] == UPSTREAM_FAILED.code


async def test_what_a_server_tells_amid_a_call_is_told_to_nobody() -> None:
    async with furnished() as house:
        ear = await house.joins(ANA)
        house.desk.answer = None
        for id, number in (("e-1", 10), ("e-2", 5_000)):
            house.calls(ANA, id)
            before = len(house.desk.asked)
            while len(house.desk.asked) == before:
                await asyncio.sleep(0)
            outbox = house.desk.outboxes[-1]
            for _ in range(number):
                outbox.put(b'{"jsonrpc":"2.0","method":"notifications/message","params":{}}')
            house.desk.finish({"content": []})
            await house.settled()
        first, second = (each["payload"] for each in responses(ear))
        assert first["result"] == {"content": []}
        assert "too much during the call" in second["error"]["message"]


async def test_a_call_that_was_withdrawn_amid_is_not_answered() -> None:
    async with furnished() as house:
        ear = await house.joins(ANA)
        house.desk.answer = None
        house.calls(ANA, "e-1")
        while not house.desk.asked:
            await asyncio.sleep(0)
        house.desk.outboxes[0].put(b'{"jsonrpc":"2.0","method":"notifications/message"}')
        house.desk.outboxes[0].end()
        await house.settled()
        assert responses(ear) == []


async def test_a_server_that_was_taken_out_meanwhile_says_nothing_more() -> None:
    async with furnished() as house:
        ear = await house.joins(ANA)
        house.desk.answer = None
        house.calls(ANA, "e-1")
        while not house.desk.asked:
            await asyncio.sleep(0)
        house.place.set_servers((), lambda: house.time)
        house.desk.finish({"content": []})
        await house.settled()
        assert responses(ear) == []
        assert notices(ear) == ["dismounted"]


async def test_what_the_inbox_did_not_bring_is_not_done_in_its_name() -> None:
    async with furnished() as house:
        await house.joins(ANA)
        inbox = house.place.inbox
        assert inbox is not None
        heading = house.place.new_header([FILES])
        inbox.send(heading, "mcp/request:tools/call:write", a_call())
        await house.settled()
        assert house.desk.asked == []
        assert inbox.party == INBOX


async def test_a_notification_expects_no_answer_and_gets_none() -> None:
    async with furnished() as house:
        ear = await house.joins(ANA)
        payload = {"jsonrpc": "2.0", "method": "tools/call", "params": a_call()["params"]}
        house.says(ANA, "e-1", "mcp/request:tools/call:write", to=[FILES], payload=payload)
        cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
        kind = "mcp/request:notifications/cancelled"
        house.says(ANA, "e-2", kind, to=[FILES], payload=cancel)
        await house.settled()
        assert house.desk.asked == []
        assert responses(ear) == []
        assert ear.errors == []


DEFINITION = "delete first"


async def called(
    bed: Bed, approval: PriorApproval | None, told: list[ApprovalRequest]
) -> ClientStream:
    outbox = TopicClientStream()
    outbox.actor, outbox.approval, outbox.on_held = AGENT, approval, told.append
    params = {"name": "delete", "arguments": ARGUMENTS, "_meta": MODERN}
    frame = jsonrpc.decode_frame(
        jsonrpc.encode_frame(jsonrpc.make_request(1, protocol.CALL_TOOL, params))
    )
    await bed.front.desk.handle_modern_request(
        frame, outbox, ((protocol.METHOD_HEADER, b"tools/call"),)
    )
    return outbox


def in_topics(bed: Bed) -> bytes:
    key = bed.holding.key
    bed.admission.approvals = InTopics(bed.holding, key)
    bed.holding.client_prompts.insert(0, LongWaitPrompt())
    return key


def result_in(outbox: ClientStream) -> Any:
    return jsonrpc.decode_value(jsonrpc.decode_members(outbox.take()[-1])["result"])


async def test_what_was_approved_as_a_proposal_is_not_asked_about_again() -> None:
    async with asking() as bed:
        key, told = in_topics(bed), list[ApprovalRequest]()
        approval = PriorApproval("ask-1", good_for("srv", "delete", DEFINITION, ARGUMENTS, key))
        outbox = await called(bed, approval, told)
        async with asyncio.timeout(10):
            await outbox.wait_until_final()
        assert result_in(outbox)["content"] == DONE["content"]
        assert told == []


@loop_over(
    "good",
    [
        ("srv", "delete", "delete second", ARGUMENTS),
        ("srv", "delete", DEFINITION, {"path": "/tmp/y"}),
        ("srv", "other", DEFINITION, ARGUMENTS),
    ],
)
async def test_what_is_not_exactly_that_waits_for_a_person(
    good: tuple[str, str, str, object],
) -> None:
    async with asking() as bed:
        key, told = in_topics(bed), list[ApprovalRequest]()
        outbox = await called(bed, PriorApproval("ask-1", good_for(*good, key)), told)
        async with asyncio.timeout(10):
            while not told:
                await asyncio.sleep(0)
        assert not outbox.is_final
        await bed.approvals.answer(APPROVER, told[0].id, ApprovalDecision.ACCEPT)
        async with asyncio.timeout(10):
            await outbox.wait_until_final()
        assert result_in(outbox)["content"] == DONE["content"]
