"""Approval requests under /api/approvals, and the stream of their changes."""

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from comity.approvals import api
from comity.approvals.api import ApprovalStreamBuffer
from comity.approvals.model import ApprovalState
from comity.audit.events import AuditType
from comity.http import event_stream
from comity.mcp.framing import SseParser
from comity.policy.grants import Effect, Grant
from tests.conformance.governed import ADMIN, Guest
from tests.support.credentials import bearer
from tests.support.inbox_scene import ANA, BEN, Scene, an_inbox
from tests.support.visitor import SECONDS, Reply


@pytest.fixture
async def scene() -> AsyncGenerator[Scene]:
    async with an_inbox() as scene:
        yield scene


async def states(scene: Scene) -> list[ApprovalState]:
    return [ask.state for ask in await scene.approvals.store.page()]


async def test_whoever_may_answer_sees_it_and_nobody_else(scene: Scene) -> None:
    ask = await scene.ask()
    elsewhere = await scene.ask(2, server="mail", tool="send")
    ana, ben = scene.person(), scene.person(BEN)
    status, found = await ana.http("GET", "/api/approvals")
    assert status == 200
    assert [each["id"] for each in found["approvals"]] == [ask.id]
    (view,) = found["approvals"]
    assert view["summary"] == "agent:ci wants to call files__write"
    assert (view["may_answer"], view["risk"]) == (True, "dangerous")
    assert view["similar"].startswith("No earlier decisions")
    assert (await ben.http("GET", "/api/approvals"))[1] == {"approvals": []}
    assert (await ben.http("GET", f"/api/approvals/{ask.id}"))[0] == 404
    _, unknown = await ben.http("GET", "/api/approvals/" + "0" * 26)
    _, hidden = await ben.http("GET", f"/api/approvals/{ask.id}")
    assert hidden["error"]["message"] == unknown["error"]["message"]
    _, both = await scene.person(ADMIN).http("GET", "/api/approvals")
    assert {each["id"] for each in both["approvals"]} == {ask.id, elsewhere.id}


async def test_who_asked_sees_its_own_and_cannot_answer_it(scene: Scene) -> None:
    ask = await scene.ask()
    agent = scene.governed.guest("agent:ci")
    _, found = await agent.http("GET", f"/api/approvals/{ask.id}")
    assert (found["may_answer"], found["refusal_reason"]) == (
        False,
        "only a person can answer this",
    )
    status, _ = await agent.http("POST", f"/api/approvals/{ask.id}/answer", {"verdict": "accept"})
    assert status == 400
    assert await states(scene) == [ApprovalState.PENDING]


@pytest.mark.parametrize(
    ("verdict", "state"),
    [
        ("accept", ApprovalState.APPROVED),
        ("decline", ApprovalState.DENIED),
        ("cancel", ApprovalState.CANCELLED),
        ("defer", ApprovalState.DEFERRED),
    ],
)
async def test_an_authority_says_its_word_once(
    scene: Scene, verdict: str, state: ApprovalState
) -> None:
    ask, ana = await scene.ask(), scene.person()
    word = {"verdict": verdict, "reason": "as agreed"}
    status, found = await ana.http("POST", f"/api/approvals/{ask.id}/answer", word)
    assert (status, found["state"]) == (200, state)
    (said,) = found["answers"]
    assert (said["by"], said["verdict"], said["reason"]) == (ANA, verdict, "as agreed")
    again = await ana.http("POST", f"/api/approvals/{ask.id}/answer", word)
    assert again[0] == 400


async def test_an_answer_is_in_the_journal_with_whose_it_was(scene: Scene) -> None:
    ask, ana = await scene.ask(), scene.person()
    heard: list[Any] = []
    scene.governed.visitor.parts.audit_log_components.audit_log.listeners.append(heard.append)
    await ana.http("POST", f"/api/approvals/{ask.id}/answer", {"verdict": "accept"})
    (answered,) = [each for each in heard if each.type == AuditType.APPROVAL_ANSWERED]
    assert (answered.actor, answered.details["approval"]) == (ANA, ask.id)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"verdict": "maybe"},
        {"verdict": "accept", "content": []},
        {"verdict": "accept", "reason": 7},
        {"verdict": "accept", "reason": "x" * 3000},
        {"verdict": "accept", "remember": "yes"},
        {"verdict": "accept", "answered_by": "person:else"},
        {"verdict": "accept", "other": 1},
        {"verdict": "decline", "remember": True},
    ],
    ids=str,
)
async def test_what_is_no_answer_changes_nothing(scene: Scene, body: dict[str, Any]) -> None:
    ask, admin = await scene.ask(), scene.person(ADMIN)
    assert (await admin.http("POST", f"/api/approvals/{ask.id}/answer", body))[0] == 400
    assert await states(scene) == [ApprovalState.PENDING]


async def test_always_makes_a_grant_that_names_the_ask(scene: Scene) -> None:
    ask, admin = await scene.ask(), scene.person(ADMIN)
    word = {"verdict": "accept", "remember": True}
    status, found = await admin.http("POST", f"/api/approvals/{ask.id}/answer", word)
    assert status == 200
    made = found["remembered"]
    assert (made["subject"], made["target"], made["effect"]) == ("agent:ci", "files/write", "allow")
    assert made["granted_by"] == ADMIN
    assert ask.id in made["justification"]


async def test_always_is_not_for_who_may_only_answer(scene: Scene) -> None:
    """An answer never widens anything. (D-102)"""
    ask, ana = await scene.ask(), scene.person()
    word = {"verdict": "accept", "remember": True}
    assert (await ana.http("POST", f"/api/approvals/{ask.id}/answer", word))[0] == 400
    assert await states(scene) == [ApprovalState.PENDING]
    assert await scene.governed.visitor.parts.snapshot.records.grants.page() == []
    await ana.http("POST", f"/api/approvals/{ask.id}/answer", {"verdict": "accept"})
    assert await scene.governed.visitor.parts.snapshot.records.grants.page() == []


async def test_always_waits_until_enough_have_approved(scene: Scene) -> None:
    ask, admin = await scene.ask(quorum=2), scene.person(ADMIN)
    word = {"verdict": "accept", "remember": True}
    _, found = await admin.http("POST", f"/api/approvals/{ask.id}/answer", word)
    assert (found["state"], found["remembered"]) == ("pending", None)


async def test_a_key_that_is_bound_to_less_answers_nothing(scene: Scene) -> None:
    ask = await scene.ask()
    bound = scene.person(ANA, "ToolInvoke(read)")
    assert (await bound.http("GET", "/api/approvals"))[1] == {"approvals": []}
    told = await bound.http("POST", f"/api/approvals/{ask.id}/answer", {"verdict": "accept"})
    assert told[0] == 404
    assert await states(scene) == [ApprovalState.PENDING]


async def test_the_riskiest_come_first_and_states_are_chosen(scene: Scene) -> None:
    first = await scene.ask(1, risk="safe")
    second = await scene.ask(2, risk="dangerous")
    ana = scene.person()
    _, found = await ana.http("GET", "/api/approvals")
    assert [each["id"] for each in found["approvals"]] == [second.id, first.id]
    await ana.http("POST", f"/api/approvals/{second.id}/answer", {"verdict": "decline"})
    for query, ids in (
        ("", {first.id}),
        ("?state=denied", {second.id}),
        ("?state=pending,denied", {first.id, second.id}),
        ("?state=all", {first.id, second.id}),
    ):
        _, found = await ana.http("GET", f"/api/approvals{query}")
        assert {each["id"] for each in found["approvals"]} == ids, query
    assert (await ana.http("GET", "/api/approvals?state=odd"))[0] == 400


async def test_many_asks_come_page_by_page(scene: Scene) -> None:
    asks = [await scene.ask(n, asker=f"agent:{n}") for n in range(300)]
    ana = scene.person()
    found: list[str] = []
    query, count = "", 0
    while count == 0 or query:
        _, page = await ana.http("GET", f"/api/approvals{query}")
        found += [each["id"] for each in page["approvals"]]
        query, count = f"?cursor={page['next']}" if "next" in page else "", count + 1
    assert count == 2
    assert sorted(found) == sorted(ask.id for ask in asks)


async def test_an_ask_is_found_by_enough_of_its_id(scene: Scene) -> None:
    ask = await scene.ask()
    ana = scene.person()
    _, found = await ana.http("GET", f"/api/approvals/{ask.id[:12].upper()}")
    assert found["id"] == ask.id
    other = await scene.ask(2)
    common = next(n for n in range(26) if ask.id[n] != other.id[n])
    if common >= 4:
        status, told = await ana.http("GET", f"/api/approvals/{ask.id[:common]}")
        assert (status, "give more" in told["error"]["message"]) == (400, True)
    assert (await ana.http("GET", f"/api/approvals/{ask.id[:2]}"))[0] == 400
    assert (await ana.http("GET", "/api/approvals/zzzzzzzz"))[0] == 404
    # Who may not see it cannot tell by trying which ids there are.
    assert (await scene.person(BEN).http("GET", f"/api/approvals/{ask.id[:12]}"))[0] == 404


async def test_a_grant_that_is_taken_back_closes_the_inbox_at_once(scene: Scene) -> None:
    grant = Grant(BEN, "approval/answer", "files/write", Effect.ALLOW)
    await scene.governed.grant(grant)
    ask, ben = await scene.ask(), scene.person(BEN)
    assert len((await ben.http("GET", "/api/approvals"))[1]["approvals"]) == 1
    await scene.governed.grant_only([])
    assert (await ben.http("GET", "/api/approvals"))[1] == {"approvals": []}
    told = await ben.http("POST", f"/api/approvals/{ask.id}/answer", {"verdict": "accept"})
    assert told[0] == 404


async def test_a_link_is_made_by_an_operator_for_somebody_who_may_answer(scene: Scene) -> None:
    ask, admin, ana = await scene.ask(), scene.person(ADMIN), scene.person()
    heard: list[Any] = []
    scene.governed.visitor.parts.audit_log_components.audit_log.listeners.append(heard.append)
    status, made = await admin.http("POST", f"/api/approvals/{ask.id}/link", {"principal": ANA})
    assert status == 200
    assert f"/approvals/{ask.id}?t=" in made["url"]
    (noted,) = [each for each in heard if each.type == AuditType.KEY_ISSUED]
    assert (noted.actor, noted.details["principal"]) == (ADMIN, ANA)
    assert "?t=" not in str(noted.details)
    assert (await ana.http("POST", f"/api/approvals/{ask.id}/link", {"principal": ANA}))[0] == 400
    scene.person(BEN)
    for party in (BEN, "person:nobody", "agent:ci", ADMIN + "x"):
        told = await admin.http("POST", f"/api/approvals/{ask.id}/link", {"principal": party})
        assert told[0] == 400, party
    await ana.http("POST", f"/api/approvals/{ask.id}/answer", {"verdict": "accept"})
    ended = await admin.http("POST", f"/api/approvals/{ask.id}/link", {"principal": ANA})
    assert ended[0] == 400


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/api/approvals"),
        ("DELETE", "/api/approvals/x"),
        ("GET", "/api/approvals/x/answer"),
    ],
)
async def test_there_is_nothing_else_there(scene: Scene, method: str, path: str) -> None:
    assert (await scene.person(ADMIN).http(method, path, {}))[0] == 404


async def test_whoever_shows_nothing_does_not_come_in(scene: Scene) -> None:
    reply = await scene.governed.visitor.send("GET", path="/api/approvals")
    assert reply.status == 401
    neighbour = await scene.person(BEN).http("GET", "/api/asksother")
    assert neighbour[0] == 403


# The stream.


STREAM = "/api/approvals/stream"


class Watching:
    """One stream, read event by event."""

    def __init__(self, reply: Reply) -> None:
        self.reply = reply
        self._parser = SseParser()
        self._events: list[tuple[str, Any]] = []

    async def next(self) -> tuple[str, Any]:
        """The next event, by its name; raises EOFError at the end."""
        async with asyncio.timeout(SECONDS):
            while not self._events:
                piece = await self.reply._chunk()  # pyright: ignore[reportPrivateUsage]
                if not piece:
                    raise EOFError
                found = self._parser.feed(piece)
                self._events += [(each.event, json.loads(each.data)) for each in found if each.data]
        return self._events.pop(0)

    async def until(self, name: str) -> list[Any]:
        """What the events say up to, and with, the first of that name."""
        found: list[Any] = []
        while True:
            event, said = await self.next()
            found.append(said)
            if event == name:
                return found


async def watch(scene: Scene, guest: Guest) -> Watching:
    headers = {"accept": "text/event-stream", **bearer(guest.key)}
    reply = await scene.governed.visitor.send("GET", headers.items(), path=STREAM)
    assert (reply.status, reply.is_stream) == (200, True)
    return Watching(reply)


async def test_what_is_open_comes_first_and_then_each_change(scene: Scene) -> None:
    first = await scene.ask(1)
    watching = await watch(scene, scene.person())
    assert [said.get("id") for said in await watching.until("current")] == [first.id, None]
    second = await scene.ask(2)
    event, said = await watching.next()
    assert (event, said["id"], said["state"]) == ("approval", second.id, "pending")
    assert said["may_answer"] is True
    await scene.person().http("POST", f"/api/approvals/{second.id}/answer", {"verdict": "decline"})
    event, said = await watching.next()
    assert (event, said["id"], said["state"]) == ("approval", second.id, "denied")


async def test_nobody_is_told_of_what_it_may_not_see(scene: Scene) -> None:
    await scene.ask(1, server="mail", tool="send")
    ben = scene.person(BEN)
    watching = await watch(scene, ben)
    assert await watching.until("current") == [{"open": 0}]
    await scene.ask(2)
    await scene.governed.grant(Grant(BEN, "approval/answer", "files/write", Effect.ALLOW))
    third = await scene.ask(3)
    event, said = await watching.next()
    assert (event, said["id"]) == ("approval", third.id)


async def test_a_stream_ends_when_its_credentials_do(scene: Scene) -> None:
    ana = scene.person()
    watching = await watch(scene, ana)
    await watching.until("current")
    scene.governed.given_out.revoke(ana.key)
    event, said = await watching.next()
    assert event == "end"
    assert ana.key not in str(said)
    with pytest.raises(EOFError):
        await watching.next()


async def test_a_reader_that_leaves_is_forgotten(scene: Scene) -> None:
    stream = scene.governed.visitor.parts.approval_components.stream
    assert stream is not None
    watching = await watch(scene, scene.person())
    await watching.until("current")
    assert len(stream) == 1
    watching.reply.leave()
    async with asyncio.timeout(SECONDS):
        while len(stream):
            await asyncio.sleep(0.01)


async def test_readers_are_let_go_when_the_gateway_ends(scene: Scene) -> None:
    watching = await watch(scene, scene.person())
    await watching.until("current")
    scene.governed.visitor.parts.end_streams()
    with pytest.raises(EOFError):
        await watching.next()
    headers = bearer(scene.person().key)
    reply = await scene.governed.visitor.send("GET", headers.items(), path=STREAM)
    assert reply.status == 503


async def test_who_hears_that_all_may_have_changed_is_told_to_read_again(scene: Scene) -> None:
    watching = await watch(scene, scene.person())
    await watching.until("current")
    stream = scene.governed.visitor.parts.approval_components.stream
    assert stream is not None
    stream.on_id_changed("")
    assert await watching.next() == ("lost", {"read": "/api/approvals"})


async def test_silence_is_filled_with_signs_of_life(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_stream, "CHECK_INTERVAL_SECONDS", 0.01)
    monkeypatch.setattr(event_stream, "CHECKS_PER_KEEP_ALIVE", 2)
    headers = bearer(scene.person().key)
    reply = await scene.governed.visitor.send("GET", headers.items(), path=STREAM)
    async with asyncio.timeout(SECONDS):
        while (await reply.event()).comment != "still here":
            pass


async def test_only_reading_is_possible_there(scene: Scene) -> None:
    headers = {"content-type": "application/json", **bearer(scene.person().key)}
    reply = await scene.governed.visitor.send("POST", headers.items(), b"{}", STREAM)
    assert reply.status == 405
    nobody = await scene.governed.visitor.send("GET", path=STREAM)
    assert nobody.status == 401


async def test_no_more_readers_come_in_than_there_is_room_for(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "MAX_READERS", 0)
    headers = bearer(scene.person().key)
    reply = await scene.governed.visitor.send("GET", headers.items(), path=STREAM)
    assert reply.status == 503


async def test_a_slow_reader_is_told_that_it_lost_something(scene: Scene) -> None:
    reader = ApprovalStreamBuffer(max_requests=2)
    asks = [scene.new(n) for n in range(4)]
    reader.add_change(asks[0])
    reader.add_change(asks[1])
    # The latest of one ask takes the place of what was said of it before.
    reader.add_change(asks[1])
    assert reader.take_changes() == (False, asks[:2])
    for ask in asks[:3]:
        reader.add_change(ask)
    assert reader.take_changes() == (True, [])
    reader.add_change(asks[3])
    assert reader.take_changes() == (False, [asks[3]])
    assert not reader.changed.is_set()
