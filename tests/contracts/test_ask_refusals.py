"""Asks and answers that no store could keep: refused before, or made harmless."""

from dataclasses import replace
from typing import Any

import pytest

from comity.app.records import RecordStores
from comity.approvals.model import ApprovalState
from comity.errors import MalformedMessage
from tests.contracts.asked import ASK, DEEDS, NOW, UNTIL, brought_to, kept, said

HOSTILE: list[dict[str, Any]] = [
    {"id": ""},
    {"id": "a\0"},
    {"asker": "\ud800"},
    {"asker": ""},
    {"digest": "x" * 2_000},
    {"server": "a\x1b[2J"},
    {"tool": "\udfff"},
    {"trace": "\n"},
    {"about": {"a": "\ud800"}},
    {"about": {"a": object()}},
    {"about": {"a": "x" * 65_536}},
    {"about": {"a": "é" * 33_000}},
    {"schema": {"a": "x" * 65_536}},
    {"options": ("\ud800",)},
    {"options": ("x" * 65_536,)},
    {"quorum": 0},
    {"quorum": -1},
    {"quorum": 2**63},
    {"created_at": NOW.replace(tzinfo=None)},
    {"expires_at": NOW.replace(tzinfo=None)},
    {"state": ApprovalState.APPROVED},
    {"call": "call-1"},
    {"answers": (said(),)},
]


async def test_an_ask_that_no_store_could_keep_is_refused(records: RecordStores) -> None:
    for changed in HOSTILE:
        with pytest.raises(MalformedMessage):
            await records.approval_requests.open(replace(ASK, **changed))
    assert await records.approval_requests.page() == []


async def test_what_nests_too_deep_to_be_read_again_is_refused(records: RecordStores) -> None:
    deep: dict[str, object] = {}
    for _ in range(100):
        deep = {"a": deep}
    with pytest.raises(MalformedMessage, match="deep"):
        await records.approval_requests.open(replace(ASK, about=deep))
    await records.approval_requests.open(replace(ASK, about={"[" * 500: "{" * 500}))


async def test_words_for_people_are_made_harmless(records: RecordStores) -> None:
    hostile = "a\0b\ud800c\x1b[2J" + "x" * 100_000
    opened = await records.approval_requests.open(replace(ASK, message=hostile))
    assert opened == await kept(records.approval_requests)
    assert opened.message.startswith("a\ufffdb\ufffdc\ufffd[2Jx")
    assert len(opened.message) == 4_000
    heard = await records.approval_requests.answer("0a", replace(said(), reason=hostile), UNTIL)
    assert heard == await kept(records.approval_requests)
    assert heard is not None
    assert heard.answers[0].reason == opened.message


WRONG_ANSWERS: list[dict[str, Any]] = [
    {"by": ""},
    {"by": "a\0"},
    {"by": "\ud800"},
    {"by": "x" * 2_000},
    {"content": {"a": "\ud800"}},
    {"content": {"a": "x" * 65_536}},
    {"at": NOW.replace(tzinfo=None)},
]


async def test_an_answer_that_no_store_could_keep_is_refused(records: RecordStores) -> None:
    await records.approval_requests.open(ASK)
    for changed in WRONG_ANSWERS:
        with pytest.raises(MalformedMessage):
            await records.approval_requests.answer("0a", replace(said(), **changed), UNTIL)
    assert await records.approval_requests.get("0a") == ASK


async def test_no_ask_is_found_by_what_cannot_be_its_name(records: RecordStores) -> None:
    await records.approval_requests.open(ASK)
    for name in ("", "a\0", "\ud800", "x" * 2_000):
        assert await records.approval_requests.find_latest(name) is None
        assert await records.approval_requests.get(name) is None
        for deed in DEEDS.values():
            assert await deed(records.approval_requests, name) is None
        assert await records.approval_requests.release("0a", name) is None
        with pytest.raises(MalformedMessage):
            await records.approval_requests.consume("0a", name, NOW)


async def test_a_time_without_a_zone_is_refused(records: RecordStores) -> None:
    await brought_to(records.approval_requests, ApprovalState.APPROVED)
    somewhere = NOW.replace(tzinfo=None)
    with pytest.raises(MalformedMessage, match="zone"):
        await records.approval_requests.consume("0a", "call-1", somewhere)
    with pytest.raises(MalformedMessage, match="zone"):
        await records.approval_requests.expire(somewhere)
    with pytest.raises(MalformedMessage, match="zone"):
        await records.approval_requests.end("0a", ApprovalState.EXPIRED, somewhere)
    with pytest.raises(MalformedMessage, match="zone"):
        await records.approval_requests.answer("0a", said(), somewhere)
