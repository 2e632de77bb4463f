"""The page of an approval request: who sees it, and what decides."""

import asyncio
import base64
import hashlib
import re
from collections.abc import AsyncGenerator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

import pytest

from comity.approvals.model import ApprovalKind, ApprovalRequest, ApprovalState
from comity.http.pages import HEADERS, render_page
from comity.identity.principals import Principal
from comity.mcp.actors import LOCAL
from comity.policy.grants import Effect, Grant
from tests.conformance.governed import ADMIN
from tests.support.inbox_scene import ANA, BEN, Scene, a_question, an_inbox
from tests.support.visitor import Reply, visiting

SAYS_WHO = "Who are you?"


@pytest.fixture
async def scene() -> AsyncGenerator[Scene]:
    async with an_inbox() as scene:
        scene.person()
        yield scene


async def text(reply: Reply) -> str:
    return (await reply.body()).decode()


async def state(scene: Scene, ask: ApprovalRequest) -> ApprovalState:
    found = await scene.approvals.store.get(ask.id)
    assert found is not None
    return found.state


def token_in(page: str) -> str:
    (found,) = re.findall(r'name="t" value="([^"]+)"', page)
    return found


async def test_a_link_shows_what_is_asked_and_decides_nothing(scene: Scene) -> None:
    ask = await scene.ask()
    link = f"/approvals/{ask.id}?t={scene.token(ask)}"
    for _ in range(3):
        reply = await scene.look(link)
        assert reply.status == 200
        shown = await text(reply)
        for part in (
            "files__write",
            "agent:ci",
            "dangerous",
            "/reports/1.txt",
            "d" * 64,
            "Approve",
        ):
            assert part in shown
    assert (await scene.governed.visitor.send("HEAD", path=link)).status == 200
    assert await state(scene, ask) is ApprovalState.PENDING


@pytest.mark.parametrize(
    ("verdict", "ends"), [("accept", ApprovalState.APPROVED), ("decline", ApprovalState.DENIED)]
)
async def test_a_button_answers_as_the_party_of_the_link(
    scene: Scene, verdict: str, ends: ApprovalState
) -> None:
    ask = await scene.ask()
    fields = {"t": scene.token(ask), "verdict": verdict, "reason": " as agreed ", "word": "write"}
    reply = await scene.fill_in(f"/approvals/{ask.id}", fields)
    assert reply.status == 200
    assert "<form" not in await text(reply)
    found = await scene.approvals.store.get(ask.id)
    assert found is not None
    assert found.state is ends
    assert [(each.by, each.reason) for each in found.answers] == [(ANA, "as agreed")]
    again = await scene.fill_in(f"/approvals/{ask.id}", fields)
    assert again.status == 400
    assert "already" in await text(again)
    late = await text(await scene.look(f"/approvals/{ask.id}?t={scene.token(ask)}"))
    assert "<form" not in late


async def test_without_a_link_or_a_key_nobody_is_told_anything(scene: Scene) -> None:
    ask = await scene.ask()
    pages = [
        (await text(await scene.look(path))).replace(path, "").replace(quote(path, safe=""), "")
        for path in (
            f"/approvals/{ask.id}",
            f"/approvals/{'0' * 26}",
            "/approvals/",
            "/approvals/x/y",
        )
    ]
    assert len(set(pages)) == 1
    assert SAYS_WHO in pages[0]
    assert 'type="password"' in pages[0]
    assert 'autocomplete="off"' in pages[0]


async def test_a_key_shows_the_ask_to_whoever_may_answer_it(scene: Scene) -> None:
    ask, ana = await scene.ask(), scene.person()
    shown = await text(await scene.fill_in(f"/approvals/{ask.id}", {"key": ana.key}))
    assert "files__write" in shown
    assert ana.key not in shown
    token = token_in(shown)
    reply = await scene.fill_in(
        f"/approvals/{ask.id}", {"t": token, "verdict": "accept", "word": "write"}
    )
    assert reply.status == 200
    assert await state(scene, ask) is ApprovalState.APPROVED


async def test_a_key_that_ends_in_between_answers_nothing(scene: Scene) -> None:
    ask, ana = await scene.ask(), scene.person()
    shown = await text(await scene.fill_in(f"/approvals/{ask.id}", {"key": ana.key}))
    scene.governed.given_out.revoke(ana.key)
    fields = {"t": token_in(shown), "verdict": "accept", "word": "write"}
    assert (await scene.fill_in(f"/approvals/{ask.id}", fields)).status == 403
    assert await state(scene, ask) is ApprovalState.PENDING


async def test_a_key_that_is_bound_to_less_answers_nothing(scene: Scene) -> None:
    ask, bound = await scene.ask(), scene.person(ANA, "ToolInvoke(read)")
    reply = await scene.fill_in(f"/approvals/{ask.id}", {"key": bound.key})
    assert reply.status == 403
    assert "files__write" not in await text(reply)


async def test_whoever_may_only_look_has_no_buttons(scene: Scene) -> None:
    ask = await scene.ask()
    agent = scene.governed.guest("agent:ci")
    shown = await text(await scene.fill_in(f"/approvals/{ask.id}", {"key": agent.key}))
    assert "only a person can answer this" in shown
    assert "<form" not in shown
    ben = scene.person(BEN)
    hidden = await scene.fill_in(f"/approvals/{ask.id}", {"key": ben.key})
    absent = await scene.fill_in(f"/approvals/{'0' * 26}", {"key": ben.key})
    assert await text(hidden) == await text(absent)


async def test_wrong_keys_are_counted_until_the_address_has_to_wait(scene: Scene) -> None:
    ask = await scene.ask()
    statuses = [
        (await scene.fill_in(f"/approvals/{ask.id}", {"key": f"guess {n}"})).status
        for n in range(40)
    ]
    assert statuses[0] == 401
    assert statuses[-1] == 429
    whole = scene.governed.given_out.give(ANA)
    wrong = whole[:-1] + ("a" if whole[-1] != "a" else "b")
    assert (await scene.fill_in(f"/approvals/{ask.id}", {"key": wrong})).status == 429


@pytest.mark.parametrize("wrong", ["", "x", "é", "a" * 5000])
async def test_what_is_no_key_is_asked_for_again(scene: Scene, wrong: str) -> None:
    ask = await scene.ask()
    reply = await scene.fill_in(f"/approvals/{ask.id}", {"key": wrong})
    shown = await text(reply)
    assert (reply.status, SAYS_WHO in shown) == (401, True)
    assert "files__write" not in shown


async def test_a_link_is_for_its_own_ask_party_and_time(scene: Scene) -> None:
    ask, other = await scene.ask(1), await scene.ask(2)
    past = scene.token(ask, expires_at=datetime.now(UTC) - timedelta(seconds=1))
    tampered = scene.token(ask)[:-4] + "AAAA"
    scene.person(BEN)
    for token in (scene.token(other), past, tampered, "x", scene.token(ask, "person:nobody")):
        fields = {"t": token, "verdict": "accept", "word": "write"}
        for reply in (
            await scene.look(f"/approvals/{ask.id}?t={token}"),
            await scene.fill_in(f"/approvals/{ask.id}", fields),
        ):
            assert reply.status == 403
            assert "files__write" not in await text(reply)
    unentitled = await scene.look(f"/approvals/{ask.id}?t={scene.token(ask, BEN)}")
    assert unentitled.status == 403
    assert await state(scene, ask) is ApprovalState.PENDING


@pytest.mark.parametrize("change", ["disabled", "an agent", "not granted any more"])
async def test_a_link_ends_with_what_its_party_was(scene: Scene, change: str) -> None:
    grant = Grant(BEN, "approval/answer", "files/*", Effect.ALLOW)
    await scene.governed.grant(grant)
    scene.person(BEN)
    ask = await scene.ask()
    link = f"/approvals/{ask.id}?t={scene.token(ask, BEN)}"
    assert "<form" in await text(await scene.look(link))
    parties = scene.governed.given_out.parties
    if change == "disabled":
        parties[BEN] = replace(parties[BEN], disabled=True)
    elif change == "an agent":
        parties[BEN] = Principal(BEN)
    else:
        await scene.governed.grant_only([])
    assert "Approve" not in await text(await scene.look(link))
    fields = {"t": scene.token(ask, BEN), "verdict": "accept", "word": "write"}
    assert (await scene.fill_in(f"/approvals/{ask.id}", fields)).status >= 400
    assert await state(scene, ask) is ApprovalState.PENDING


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://localhost:9"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
        {"content_type": "text/plain"},
        {"content_type": "application/json"},
    ],
    ids=str,
)
async def test_no_page_of_elsewhere_presses_the_button(
    scene: Scene, headers: dict[str, str]
) -> None:
    ask = await scene.ask()
    fields = {"t": scene.token(ask), "verdict": "accept", "word": "write"}
    reply = await scene.fill_in(f"/approvals/{ask.id}", fields, **headers)
    assert reply.status in (400, 403)
    assert await state(scene, ask) is ApprovalState.PENDING


async def test_the_page_can_be_framed_kept_and_scripted_by_nobody(scene: Scene) -> None:
    ask = await scene.ask()
    for reply in (
        await scene.look(f"/approvals/{ask.id}"),
        await scene.look(f"/approvals/{ask.id}?t={scene.token(ask)}"),
        await scene.fill_in(f"/approvals/{ask.id}", {"key": "wrong"}),
    ):
        said = reply.headers
        policy = said["content-security-policy"]
        assert policy.startswith("default-src 'none'; style-src 'sha256-")
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert (said["cache-control"], said["referrer-policy"]) == ("no-store", "same-origin")
        assert "access-control-allow-origin" not in said
        shown = await text(reply)
        assert not re.search(r"<script|javascript:|https?://|\son\w+=", shown)


@pytest.mark.parametrize(
    "trick", ["<script>alert(1)</script>", '"><img src=x onerror=x>', "</pre><b>"]
)
async def test_what_strangers_wrote_is_text_and_nothing_else(scene: Scene, trick: str) -> None:
    about = {"tool": trick, "risk": trick, "arguments": {trick: trick}, "arguments_digest": trick}
    ask = await scene.ask(about=about, asker=f"agent:{trick}", trace=trick)
    shown = await text(await scene.look(f"/approvals/{ask.id}?t={scene.token(ask)}"))
    assert trick not in shown
    assert shown.count("<script") == 0
    assert shown.count("<img") == 0


async def test_what_wants_more_than_yes_or_no_has_no_buttons(scene: Scene) -> None:
    ask = await scene.ask(kind=ApprovalKind.INPUT, message="Which day?")
    shown = await text(await scene.look(f"/approvals/{ask.id}?t={scene.token(ask)}"))
    assert "Which day?" in shown
    assert "<form" not in shown


async def test_a_form_that_says_neither_is_asked_to_choose(scene: Scene) -> None:
    ask = await scene.ask()
    for verdict in ("", "maybe", "defer"):
        fields = {"t": scene.token(ask), "verdict": verdict}
        assert (await scene.fill_in(f"/approvals/{ask.id}", fields)).status == 400
    assert (await scene.governed.visitor.send("PUT", path=f"/approvals/{ask.id}")).status == 405
    assert await state(scene, ask) is ApprovalState.PENDING


@pytest.mark.parametrize("word", ["", "writ", "delete"])
async def test_a_dangerous_call_is_approved_by_typing_its_tool(scene: Scene, word: str) -> None:
    ask = await scene.ask()
    fields = {"t": scene.token(ask), "verdict": "accept", "reason": "as agreed", "word": word}
    reply = await scene.fill_in(f"/approvals/{ask.id}", fields)
    shown = await text(reply)
    assert reply.status == 400
    assert "Type write to approve" in shown
    assert 'value="as agreed"' in shown
    assert await state(scene, ask) is ApprovalState.PENDING
    # The operator API names the same word, so the console asks for it too.
    _, found = await scene.person().http("GET", f"/api/approvals/{ask.id}")
    assert found["confirmation_word"] == "write"


async def test_a_moderate_call_needs_no_word(scene: Scene) -> None:
    ask = await scene.approvals.open(a_question(scene.approvals, risk="moderate"))
    shown = await text(await scene.look(f"/approvals/{ask.id}?t={scene.token(ask)}"))
    assert 'name="word"' not in shown
    fields = {"t": scene.token(ask), "verdict": "accept"}
    assert (await scene.fill_in(f"/approvals/{ask.id}", fields)).status == 200
    assert await state(scene, ask) is ApprovalState.APPROVED


async def test_more_people_are_waited_for_where_they_are_needed(scene: Scene) -> None:
    ask = await scene.ask(quorum=2)
    scene.person(ADMIN)
    first = await scene.fill_in(
        f"/approvals/{ask.id}", {"t": scene.token(ask), "verdict": "accept", "word": "write"}
    )
    assert "More people must approve" in await text(first)
    second = {"t": scene.token(ask, ADMIN), "verdict": "accept", "word": "write"}
    assert "may run once" in await text(await scene.fill_in(f"/approvals/{ask.id}", second))


async def test_a_key_reaches_neither_log_nor_journal(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    ask, ana = await scene.ask(), scene.person()
    caplog.set_level("DEBUG")
    heard: list[Any] = []
    journal = scene.governed.visitor.parts.audit_log_components.audit_log
    journal.listeners.append(heard.append)
    shown = await text(await scene.fill_in(f"/approvals/{ask.id}", {"key": ana.key}))
    await scene.fill_in(f"/approvals/{ask.id}", {"key": ana.key[:-1] + "!"})
    await scene.fill_in(
        f"/approvals/{ask.id}", {"t": token_in(shown), "verdict": "accept", "word": "write"}
    )
    async with asyncio.timeout(20):
        await journal.flush()
    told = caplog.text + repr(heard)
    assert ana.key[:-1] not in told
    assert token_in(shown) not in told


async def test_in_local_mode_a_link_of_the_operator_needs_no_key() -> None:
    async with visiting() as visitor:
        approvals = visitor.parts.approval_components.approvals
        ask = await approvals.open(a_question(approvals))
        page = f"/approvals/{ask.id}"
        without = await text(await visitor.send("GET", path=page))
        assert "comity approve" in without
        assert ask.message not in without
        assert 'name="verdict"' not in without
        plain = {"content-type": "application/json"}
        made = await visitor.send("POST", plain.items(), b"{}", f"/api{page}/link")
        link = str((await made.json())["url"]).partition("?")[2]
        shown = await text(await visitor.send("GET", path=f"{page}?{link}"))
        assert "Approve" in shown
        fields = f"t={token_in(shown)}&verdict=accept&word=write".encode()
        form = {"content-type": "application/x-www-form-urlencoded"}
        passed_on = {**form, "x-forwarded-for": "192.0.2.1"}
        refused = await visitor.send("POST", passed_on.items(), fields, page)
        assert refused.status == 403
        forged = await visitor.send("POST", form.items(), b"verdict=accept", page)
        assert forged.status == 401
        assert (await visitor.send("POST", form.items(), fields, page)).status == 200
        found = await approvals.store.get(ask.id)
        assert found is not None
        assert (found.state, found.answers[0].by) == (ApprovalState.APPROVED, LOCAL.party)


def test_the_policy_names_the_very_style_of_the_page() -> None:
    policy = dict(HEADERS)[b"content-security-policy"].decode()
    (style,) = re.findall(r"<style>(.*?)</style>", render_page("x").decode(), re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert f"'sha256-{digest}'" in policy
