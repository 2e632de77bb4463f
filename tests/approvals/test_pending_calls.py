"""Calls that wait for an approval: what runs, how often, and what their clients are told."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, cast
from unittest.mock import Mock

import pytest

from comity.approvals import pending_calls
from comity.approvals.model import (
    ApprovalDecision,
    ApprovalKind,
    ApprovalRequest,
    ApprovalState,
)
from comity.approvals.pending_calls import (
    MAX_POLICY_CHECKS,
    ApprovedCall,
    ApprovedRounds,
    check_with_retries,
)
from comity.approvals.presentation import describe_request, detail_rows
from comity.approvals.prompt_messages import prompt_text
from comity.approvals.settings import ApprovalSettings
from comity.audit.events import AuditType
from comity.catalog.definitions import UNLISTED_DEFINITION
from comity.errors import (
    APPROVAL_REQUIRED,
    AUDIT_LOG_AWAY,
    POLICY_UNKNOWN,
    TOOL_DISABLED,
    TOOL_NOT_FOUND,
    MalformedMessage,
    Unavailable,
)
from comity.gateway import retries
from comity.gateway.retries import RetryService
from comity.mcp import jsonrpc, protocol
from comity.mcp.entries import CatalogEntry, EntryKind
from comity.mcp.refusals import Refusal
from comity.policy.grants import Effect, Grant
from comity.policy.risk import ServerPolicy, ToolPolicy
from comity.sessions.calls import Call
from comity.sessions.client_streams import ClientStream
from comity.sessions.sessions import Session
from tests.support.asking import AGENT, ANA, BEA, DONE, OTHER, Bed, Time, asking
from tests.support.carriers import SILENCE, Params, Script, params_of, settled, until
from tests.support.desks import Asked
from tests.support.refused import kind_of

AT_ONCE = ApprovalSettings(client_wait=timedelta(milliseconds=1))


async def waiting_call(bed: Bed) -> tuple[Session, Asked]:
    """A legacy client, and its call once somebody is asked about it."""
    session = await bed.front.client()
    call = bed.call(session)
    await bed.open_ask()
    return session, call


async def test_a_call_that_is_approved_runs_once() -> None:
    async with asking() as bed:
        call = bed.call(await bed.front.client())
        ask = await bed.open_ask()
        assert bed.runs == 0
        assert (ask.asker, ask.server, ask.tool) == (AGENT.party, "srv", "delete")
        await bed.answer()
        assert await call.result() == DONE
        assert bed.runs == 1
        assert (await bed.asks.get(ask.id) or ask).state is ApprovalState.CONSUMED
        assert await bed.told() == [
            *(
                "AUDIT_LOG_OPENED",
                "APPROVAL_REQUESTED",
                "APPROVAL_ANSWERED",
                "CALL_INTENDED",
                "APPROVAL_CONSUMED",
            ),
            "TOOL_EXECUTED",
        ]
        intent = next(event for event in bed.events if event.type is AuditType.CALL_INTENDED)
        assert intent.details["answered_by"] == ask.id
        assert len({event.trace for event in bed.events[1:]}) == 1


class Scopes:
    """Every call reaches beyond its scope."""

    def applies_to(self, entry: CatalogEntry) -> bool:
        return True

    def check_scope(self, call: Call, entry: CatalogEntry, arguments: object) -> str:
        return "/etc"

    def describe(self, beyond: str) -> dict[str, object]:
        return {"feature_set": "files", "label": beyond, "payload": {}}

    def hold(self, *_: object) -> Refusal:
        raise AssertionError("one question is enough")


async def test_a_confirmation_names_the_scope_that_it_approves_too() -> None:
    async with asking() as bed:
        bed.admission.scope_checker = cast("Any", Scopes())
        call = bed.call(await bed.front.client())
        ask = await bed.open_ask()
        assert (ask.kind, ask.about["scope"]) == (
            ApprovalKind.CONFIRM,
            {"feature_set": "files", "label": "/etc", "payload": {}},
        )
        # Every way to tell people says it: forms, pages, messages and commands.
        assert describe_request(ask).endswith(" beyond its scope")
        assert "beyond its scope" in prompt_text(ask)
        rows = {row.name: row.text for row in detail_rows(ask, bed.time())}
        assert '"/etc"' in rows["Beyond its scope"]
        assert bed.runs == 0
        await bed.answer()
        assert await call.result() == DONE
        assert bed.runs == 1


async def test_a_call_that_is_declined_never_runs_nor_asks_again_for_a_while() -> None:
    async with asking() as bed:
        session, call = await waiting_call(bed)
        await bed.approvals.answer(
            ANA, (await bed.open_ask()).id, ApprovalDecision.DECLINE, "not today"
        )
        error = await call.error()
        assert kind_of(error) == "declined"
        assert "person:ana@example.org declined this call: not today" in error.message
        assert kind_of(await bed.call(session).error()) == "declined"
        assert await bed.asks.count(list(ApprovalState)) == 1
        bed.time.passes(bed.options.denial_cooldown)
        bed.call(session)
        await bed.open_ask()
        assert bed.runs == 0


async def test_a_call_that_nobody_answers_expires() -> None:
    async with asking(options=ApprovalSettings(client_wait=timedelta(hours=1))) as bed:
        call = bed.call(await bed.front.client())
        ask = await bed.open_ask()
        bed.time.passes(bed.options.request_ttl)
        bed.approvals.on_changed(ask.id)
        error = await call.error()
        assert kind_of(error) == "declined"
        assert "in time" in error.message
        assert (await bed.asks.get(ask.id) or ask).state is ApprovalState.EXPIRED
        with pytest.raises(MalformedMessage, match="expired"):
            await bed.approvals.answer(ANA, ask.id, ApprovalDecision.ACCEPT)
        assert bed.runs == 0


async def test_an_approval_that_nobody_used_in_time_is_void() -> None:
    async with asking(options=AT_ONCE) as bed:
        session = await bed.front.client()
        await bed.call(session).error()
        first = await bed.answer()
        bed.time.passes(bed.options.approval_ttl)
        assert kind_of(await bed.call(session).error()) == "pending_approval"
        assert (await bed.open_ask()).id != first.id
        assert bed.runs == 0


async def test_of_two_equal_calls_one_runs_by_one_approval_and_the_other_asks_anew() -> None:
    async with asking() as bed:
        session = await bed.front.client()
        calls = [bed.call(session), bed.call(session)]
        for call in calls:
            await call.asking
        first = await bed.answer()
        await until(lambda: bed.runs == 1)
        second = await bed.open_ask()
        assert second.id != first.id
        assert bed.runs == 1
        await bed.answer()
        assert [await call.result() for call in calls] == [DONE, DONE]
        assert bed.runs == 2


async def _decline_all(bed: Bed) -> None:
    while True:
        await bed.answer(ApprovalDecision.DECLINE)


async def test_two_hundred_equal_calls_at_once_with_one_approval_run_once() -> None:
    async with asking(options=ApprovalSettings(client_wait=timedelta(hours=1))) as bed:
        session = await bed.front.client()
        calls = [bed.call(session) for _ in range(200)]
        for call in calls:
            await call.asking
        await bed.answer()
        await until(lambda: bed.runs == 1)
        # A call that looked for an earlier answer before the first was used asks once more.
        declining = asyncio.ensure_future(_decline_all(bed))
        kinds = [await _kind(call) for call in calls]
        declining.cancel()
        assert (kinds.count(""), kinds.count("declined")) == (1, 199)
        assert bed.runs == 1


async def test_the_same_arguments_of_another_party_are_another_ask() -> None:
    async with asking(options=AT_ONCE) as bed:
        session = await bed.front.client()
        await bed.call(session).error()
        await bed.answer()
        assert kind_of(await bed.call(session, OTHER).error()) == "pending_approval"
        assert kind_of(await bed.call(session, arguments={"path": "/"}).error()) == (
            "pending_approval"
        )
        assert bed.runs == 0


async def test_who_waits_too_long_is_told_to_call_again_and_that_runs_once() -> None:
    async with asking(options=AT_ONCE) as bed:
        session = await bed.front.client()
        refusal = await bed.call(session).refusal()
        ask = await bed.open_ask()
        assert refusal["error_type"] == "pending_approval"
        # The same call waits again, so it may be made at once.
        assert (refusal["retryable"], refusal["retry_after_ms"]) == (True, 1000)
        details = refusal["details"]
        assert isinstance(details, dict)
        assert details["approval_id"] == ask.id
        assert details["url"] == f"/approvals/{ask.id}"
        again = await bed.call(session).refusal()
        assert again["details"] == details
        (content,) = cast("list[dict[str, str]]", (await bed.call(session).result())["content"])
        text = content["text"]
        assert text.count("has not run") == 1
        assert text.count("waits for approval") == 1
        assert "again, at once if you like" in text
        assert "earliest" not in text
        await bed.answer()
        assert await bed.call(session).result() == DONE
        assert kind_of(await bed.call(session).error()) == "pending_approval"
        assert bed.runs == 1


async def test_who_has_as_many_asks_as_it_may_is_still_told_of_those() -> None:
    async with asking(options=replace(AT_ONCE, max_open_per_principal=1)) as bed:
        session = await bed.front.client()
        first = await bed.call(session).refusal()
        assert kind_of(await bed.call(session, arguments={"path": "/"}).error()) == ("exhausted")
        assert (await bed.call(session).refusal())["details"] == first["details"]


async def test_a_quorum_of_two_needs_two_people() -> None:
    async with asking() as bed:
        bed.tools.quorum = 2
        call = bed.call(await bed.front.client())
        await bed.answer(by=ANA)
        with pytest.raises(MalformedMessage):
            await bed.answer(by=ANA)
        await settled()
        assert bed.runs == 0
        await bed.answer(by=BEA)
        assert await call.result() == DONE
        assert bed.runs == 1


async def test_deadline_of_a_call_runs_only_after_its_approval() -> None:
    async with asking(Script(replies={protocol.CALL_TOOL: SILENCE})) as bed:
        _, call = await waiting_call(bed)
        bed.front.clock.passes(299)
        bed.front.underway.check(10_000)
        assert not call.outbox.is_final
        await bed.answer()
        await until(lambda: bed.runs == 1)
        bed.front.clock.passes(61)
        bed.front.underway.check(10_000)
        refusal = await call.refusal()
        assert (refusal["error_type"], refusal["retryable"]) == ("timeout", False)


async def test_no_limit_of_a_call_runs_while_a_person_is_asked() -> None:
    async with asking(options=ApprovalSettings(client_wait=timedelta(hours=9))) as bed:
        _, call = await waiting_call(bed)
        bed.front.clock.passes(301)
        bed.front.underway.check(10_000)
        assert not call.outbox.is_final
        await bed.answer()
        assert await call.result() == DONE
        assert bed.runs == 1


async def test_who_gave_a_token_hears_at_once_and_is_kept_for_as_long_as_it_takes() -> None:
    async with asking(options=AT_ONCE) as bed:
        call = bed.call(await bed.front.client(), _meta={"progressToken": "p"})
        ask = await bed.open_ask()
        await until(lambda: bool(call.outbox.frames))
        news = jsonrpc.decode_frame(call.outbox.take()[0])
        assert news.method == protocol.PROGRESS
        assert params_of(news)["progressToken"] == "p"
        assert ask.id in str(params_of(news)["message"])
        await settled(200)
        assert not call.outbox.is_final
        await bed.answer()
        assert await call.result() == DONE


async def test_a_repeated_key_is_refused_before_anybody_is_asked() -> None:
    async with asking() as bed:
        _, call = await waiting_call(bed)
        frame = jsonrpc.decode_frame(
            b'{"jsonrpc":"2.0","id":"d","method":"tools/call","params":'
            b'{"name":"delete","arguments":{"path":"/tmp/x","path":"/etc"}}}'
        )
        outbox = type(call.outbox)()
        outbox.actor = AGENT
        session = await bed.front.client()
        asked = Asked(
            outbox, asyncio.ensure_future(bed.front.desk.handle_request(session, frame, outbox))
        )
        assert "repeated" in (await asked.error()).message
        assert await bed.asks.count(list(ApprovalState)) == 1
        assert bed.runs == 0


async def _kind(call: Asked) -> str:
    frame = await call.answer()
    found = jsonrpc.error_of(frame)
    if found is not None:
        return kind_of(found)
    return "declined" if b"declined" in jsonrpc.encode_frame(frame) else ""


# What may happen to a call before and while it leaves.


def _amid_the_last_step(bed: Bed, act: Callable[[], object]) -> Callable[[], None]:
    """Do this when an approval has been used and its call has not left; gives how to undo that."""
    use = bed.asks.consume

    async def use_and_act(
        id: str, name: str, at: datetime, *, with_notice: bool = False
    ) -> ApprovalRequest | None:
        used = await use(id, name, at, with_notice=with_notice)
        act()
        return used

    bed.asks.consume = use_and_act  # type: ignore[method-assign]

    def restore() -> None:
        bed.asks.consume = use

    return restore


async def test_a_client_that_withdraws_before_the_answer_runs_nothing_until_it_calls_again() -> (
    None
):
    async with asking() as bed:
        session = await bed.front.client()
        call = bed.call(session)
        ask = await bed.open_ask()
        (await call.asking).withdraw(None)
        await bed.nothing_waits()
        await bed.answer()
        await settled()
        assert bed.runs == 0
        assert await bed.call(session).result() == DONE
        assert bed.runs == 1
        assert (await bed.asks.get(ask.id) or ask).state is ApprovalState.CONSUMED


async def test_a_client_that_withdraws_amid_the_last_step_leaves_the_answer_to_its_next_call() -> (
    None
):
    async with asking() as bed:
        session, call = await waiting_call(bed)
        asked = await call.asking
        restore = _amid_the_last_step(bed, lambda: asked.withdraw(None))
        ask = await bed.answer()
        await bed.nothing_waits()
        restore()
        assert bed.runs == 0
        assert (await bed.asks.get(ask.id) or ask).state is ApprovalState.APPROVED
        assert await bed.call(session).result() == DONE
        assert bed.runs == 1
        told = await bed.told()
        assert told.count("CALL_INTENDED") == 2
        assert told.count("TOOL_BLOCKED") == 1


async def test_whoever_left_before_it_was_asked_wakes_nobody() -> None:
    async with asking() as bed:
        woken: list[str] = []
        bed.approvals.on_changed = woken.append  # type: ignore[method-assign]
        latest, is_left = bed.asks.find_latest, asyncio.Event()

        async def latest_slowly(digest: str) -> ApprovalRequest | None:
            await is_left.wait()
            return await latest(digest)

        bed.asks.find_latest = latest_slowly
        call = bed.call(await bed.front.client())
        (await call.asking).withdraw(None)
        is_left.set()
        await bed.nothing_waits()
        assert woken == []
        assert bed.runs == 0


async def test_a_definition_that_drifts_meanwhile_is_not_run() -> None:
    async with asking() as bed:
        session, call = await waiting_call(bed)
        bed.tools.version = "second"
        ask = await bed.answer()
        assert kind_of(await call.error()) == TOOL_DISABLED.error_type
        assert (await bed.asks.get(ask.id) or ask).state is ApprovalState.WITHDRAWN
        # The same call is about another thing now, and somebody is asked about that.
        bed.call(session)
        assert (await bed.open_ask()).digest != ask.digest
        assert bed.runs == 0


async def test_a_definition_that_drifts_amid_the_last_step_is_not_run() -> None:
    async with asking() as bed:
        _, call = await waiting_call(bed)
        _amid_the_last_step(bed, lambda: setattr(bed.tools, "version", "second"))
        await bed.answer()
        assert kind_of(await call.error()) == TOOL_DISABLED.error_type
        assert bed.runs == 0


def _remove_tool(bed: Bed) -> None:
    bed.front.catalog.clear("srv")


def _revoke_grant(bed: Bed) -> None:
    bed.grants.denied = True


def _disable_tool(bed: Bed) -> None:
    bed.tools.refusal = Refusal(TOOL_DISABLED, "set aside")


@pytest.mark.parametrize(
    ("change", "kind", "state"),
    [
        (_remove_tool, "tool_not_found", ApprovalState.APPROVED),
        (_revoke_grant, "access_denied", ApprovalState.WITHDRAWN),
        (_disable_tool, TOOL_DISABLED.error_type, ApprovalState.WITHDRAWN),
    ],
)
async def test_approved_call_is_not_run_after_a_change(
    change: Callable[[Bed], None], kind: str, state: ApprovalState
) -> None:
    async with asking() as bed:
        _, call = await waiting_call(bed)
        change(bed)
        ask = await bed.answer()
        assert kind_of(await call.error()) == kind
        assert (await bed.asks.get(ask.id) or ask).state is state
        assert bed.runs == 0


async def test_without_the_journal_nothing_runs_and_the_answer_stands() -> None:
    async with asking() as bed:
        session, call = await waiting_call(bed)
        insist = bed.journal.insist

        def away(_: object) -> asyncio.Future[None]:
            failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            failed.set_exception(bed.journal.unavailable_error())
            return failed

        bed.journal.insist = away  # type: ignore[method-assign]
        ask = await bed.answer()
        assert kind_of(await call.error()) == AUDIT_LOG_AWAY.error_type
        assert (await bed.asks.get(ask.id) or ask).state is ApprovalState.APPROVED
        assert bed.runs == 0
        bed.journal.insist = insist
        assert await bed.call(session).result() == DONE
        assert bed.runs == 1


async def test_a_call_that_was_never_sent_leaves_its_answer_as_it_was() -> None:
    async with asking() as bed:
        session, call = await waiting_call(bed)
        for carrier in bed.script.carriers:
            carrier.breaks = Unavailable("no way there")
        ask = await bed.answer()
        assert "no way there" in (await call.error()).message
        await bed.nothing_waits()
        assert (await bed.asks.get(ask.id) or ask).state is ApprovalState.APPROVED
        assert "TOOL_EXECUTED" not in await bed.told()
        for carrier in bed.script.carriers:
            carrier.breaks = None
        assert await bed.call(session).result() == DONE
        assert bed.runs == 1


async def test_a_call_that_no_attempt_has_sent_leaves_its_answer_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retries, "FIRST_RETRY_DELAY", timedelta(milliseconds=1))
    policy = ServerPolicy(tools={"delete": ToolPolicy(idempotent=True, max_retries=1)})
    async with asking() as bed:
        made: list[int] = []
        service = RetryService(lambda _: policy, random_value=lambda: 0.0)
        service.retry_listeners.append(lambda call, attempt, reason: made.append(attempt))
        bed.front.call_gate.retries = service
        session, call = await waiting_call(bed)
        for carrier in bed.script.carriers:
            carrier.breaks = Unavailable("no way there")
        ask = await bed.answer()
        assert "no way there" in (await call.error()).message
        await bed.nothing_waits()
        assert made == [1]
        assert (await bed.asks.get(ask.id) or ask).state is ApprovalState.APPROVED
        assert "TOOL_EXECUTED" not in await bed.told()
        for carrier in bed.script.carriers:
            carrier.breaks = None
        assert await bed.call(session).result() == DONE
        assert bed.runs == 1


async def test_a_gateway_that_ends_lets_everybody_go_and_the_same_call_runs_at_the_next() -> None:
    async with asking() as bed:
        session = await bed.front.client()
        calls = [bed.call(session), bed.call(session, arguments={"path": "/"})]
        for call in calls:
            await call.asking
        async with asyncio.timeout(10):
            while await bed.asks.count((ApprovalState.PENDING,)) < len(calls):
                await asyncio.sleep(0)
        bed.holding.end()
        for call in calls:
            assert kind_of(await call.error()) == "pending_approval"
        await bed.nothing_waits()
        assert not bed.holding.waiting_calls
        for ask in await bed.asks.page((ApprovalState.PENDING,)):
            await bed.answer_to(ask)
        assert await bed.call(session).result() == DONE
        assert bed.runs == 1


async def test_a_gateway_that_ends_amid_the_last_step_runs_nothing_and_the_answer_stands() -> None:
    async with asking() as bed:
        _, call = await waiting_call(bed)
        _amid_the_last_step(bed, bed.holding.end)
        ask = await bed.answer()
        assert kind_of(await call.error()) == "pending_approval"
        await bed.nothing_waits()
        assert (await bed.asks.get(ask.id) or ask).state is ApprovalState.APPROVED
        assert bed.runs == 0


# The last look before an approved call leaves.


def _approved(bed: Bed, definition: bytes = b'{"name":"delete"}') -> ApprovedCall:
    outbox = ClientStream()
    outbox.actor = AGENT
    call = Call(jsonrpc.make_request(1, protocol.CALL_TOOL, {}), outbox, None, 0)
    offer = CatalogEntry("srv__delete", "srv", "delete", definition)
    return ApprovedCall(bed.holding, call, offer, bed.tools.review_of(offer), {}, None)


async def test_who_allowed_how_far_a_call_reaches_has_not_confirmed_the_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with asking() as bed:
        whole = _approved(bed)
        reach = replace(whole, scope="/etc")
        assert whole.refusal_reason() is None
        refusal = reach.refusal_reason()
        assert refusal is not None
        assert refusal.fault is APPROVAL_REQUIRED
        grant = Grant("agent:ci", "tools/call", "srv/delete", Effect.ALLOW)
        monkeypatch.setattr(bed.grants, "standing_answer", Mock(return_value=grant))
        assert reach.refusal_reason() is None


async def test_what_was_listed_and_is_no_more_may_not_but_what_never_was_may() -> None:
    async with asking() as bed:
        run, unlisted = _approved(bed), _approved(bed, UNLISTED_DEFINITION)
        bed.front.catalog.put("srv", EntryKind.TOOL, ())
        refusal = run.refusal_reason()
        assert refusal is not None
        assert refusal.fault is TOOL_NOT_FOUND
        assert unlisted.refusal_reason() is None


async def test_where_nothing_is_known_of_tools_grants_alone_decide() -> None:
    async with asking() as bed:
        bed.admission.tools = None
        assert _approved(bed).refusal_reason() is None


async def test_a_moment_in_which_nothing_is_known_for_sure_ends_nothing() -> None:
    looks: list[int] = []

    def look() -> Refusal | None:
        looks.append(1)
        if len(looks) < MAX_POLICY_CHECKS:
            raise Unavailable("not known", POLICY_UNKNOWN, timedelta(milliseconds=1))
        return None

    assert await check_with_retries(look) is None
    assert len(looks) == MAX_POLICY_CHECKS


async def test_what_stays_unknown_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def look() -> Refusal | None:
        raise Unavailable("not known", POLICY_UNKNOWN)

    monkeypatch.setattr(pending_calls, "RETRY_AFTER", timedelta(0))
    with pytest.raises(Unavailable, match="not known"):
        await check_with_retries(look)


# Approved calls of several rounds.


CAN_BE_ASKED: Params = {"elicitation": {"form": {}}, "roots": {}}
GIVEN: Params = {"action": "accept", "content": {"name": "you"}}


def _asks_for_a_name(state: str | None = "the server's own") -> Script:
    """A modern server whose tool wants a name before it does anything."""

    def answer(params: Params) -> Params:
        if "inputResponses" in params:
            return {"resultType": "complete", **DONE}
        wants = {"method": protocol.ELICIT, "params": {"mode": "form", "message": "Name?"}}
        said: Params = {"resultType": "input_required", "inputRequests": {"name": wants}}
        return said if state is None else {**said, "requestState": state}

    return Script(handshake=False, modern=True, replies={protocol.CALL_TOOL: answer})


async def _first_round(bed: Bed) -> Params:
    call = bed.call_modern(capabilities=CAN_BE_ASKED)
    await bed.answer()
    result = await call.result()
    assert result["resultType"] == "input_required"
    return result


@pytest.mark.parametrize("at_all", [False, True])
@pytest.mark.parametrize("state", ["the server's own", None])
async def test_the_next_round_of_an_approved_call_is_not_asked_about(
    state: str | None, at_all: bool
) -> None:
    async with asking(_asks_for_a_name(state), at_all=at_all) as bed:
        asked = await _first_round(bed)
        members: dict[str, Any] = {"inputResponses": {"name": GIVEN}}
        if state is not None:
            members["requestState"] = asked["requestState"]
        call = bed.call_modern(capabilities=CAN_BE_ASKED, **members)
        assert (await call.result())["content"] == DONE["content"]
        assert bed.runs == 2
        told = await bed.told()
        assert (told.count("APPROVAL_REQUESTED"), told.count("CALL_INTENDED")) == (1, 2)
        # The same once more is another execution.
        bed.call_modern(capabilities=CAN_BE_ASKED, **members)
        await bed.open_ask()
        assert bed.runs == 2


async def test_a_round_of_somebody_else_or_of_another_call_is_asked_about() -> None:
    async with asking(_asks_for_a_name()) as bed:
        asked = await _first_round(bed)
        state, given = asked["requestState"], {"name": GIVEN}
        for changed in (
            {"actor": OTHER},
            {"arguments": {"path": "/"}},
            {"requestState": "another"},
        ):
            members: dict[str, Any] = {
                "capabilities": CAN_BE_ASKED,
                "requestState": state,
                "inputResponses": given,
                **changed,
            }
            call = bed.call_modern(**members)
            ask = await bed.open_ask()
            assert not call.outbox.is_final
            (await call.asking).withdraw(None)
            await bed.approvals.withdraw(ask, "seen")
            assert bed.runs == 1


async def test_a_bridged_servers_own_question_goes_on_without_another_ask() -> None:
    script = Script(replies={protocol.CALL_TOOL: SILENCE})
    async with asking(script) as bed:
        call = bed.call_modern(capabilities=CAN_BE_ASKED)
        await bed.answer()
        await until(lambda: bed.runs == 1)
        carrier = next(each for each in script.carriers if each.asked(protocol.CALL_TOOL))
        (sent,) = carrier.asked(protocol.CALL_TOOL)
        carrier.says(jsonrpc.make_request(7, protocol.ELICIT, {"message": "Name?"}), sent)
        asked = await call.result()
        assert asked["resultType"] == "input_required"
        (key,) = cast("dict[str, object]", asked["inputRequests"])
        members: dict[str, Any] = {
            "requestState": asked["requestState"],
            "inputResponses": {key: GIVEN},
        }
        again = bed.call_modern(capabilities=CAN_BE_ASKED, **members)
        await until(lambda: bool([f for f in carrier.told() if f.id == 7]))
        carrier.answers(sent, DONE)
        assert (await again.result())["content"] == DONE["content"]
        # To its server it was one call all the time.
        assert bed.runs == 1
        assert (await bed.told()).count("APPROVAL_REQUESTED") == 1


async def test_a_call_that_is_declined_has_no_next_round() -> None:
    async with asking(_asks_for_a_name()) as bed:
        call = bed.call_modern(capabilities=CAN_BE_ASKED)
        await bed.open_ask()
        members: dict[str, Any] = {"requestState": "the server's own", "inputResponses": {}}
        forged = bed.call_modern(capabilities=CAN_BE_ASKED, **members)
        await bed.answer(ApprovalDecision.DECLINE)
        assert kind_of(await call.error()) == "declined"
        assert kind_of(await forged.error()) == "declined"
        assert bed.runs == 0


def test_what_has_waited_too_long_or_is_too_much_is_forgotten() -> None:
    time = Time()
    continuing = ApprovedRounds(time, max_rounds=2, timeout=timedelta(minutes=1))
    for number in range(3):
        call = _call(f"ask-{number}")
        continuing.watch(call, f"digest-{number}")
        assert call.on_input_required is not None
        call.on_input_required(
            jsonrpc.make_result(1, {"resultType": "input_required", "requestState": "s"})
        )
    assert len(continuing) == 2
    again = jsonrpc.make_request(2, protocol.CALL_TOOL, {"requestState": "s"})
    assert not continuing.is_next_round(_call(), "digest-0", again)
    assert continuing.is_next_round(_call(), "digest-1", again)
    assert not continuing.is_next_round(_call(), "digest-1", again)
    time.passes(timedelta(minutes=1))
    assert not continuing.is_next_round(_call(), "digest-2", again)


def test_a_result_that_asks_for_nothing_readable_goes_on_with_nothing() -> None:
    continuing = ApprovedRounds(Time())
    call = _call("ask")
    continuing.watch(call, "digest")
    assert call.on_input_required is not None
    for result in ({"resultType": "complete"}, {"resultType": "input_required"}):
        call.on_input_required(jsonrpc.make_result(1, result))
    assert len(continuing) == 0


def _call(answered_by: str = "") -> Call:
    call = Call(jsonrpc.make_request(1, protocol.CALL_TOOL, {}), ClientStream(), None, 0)
    call.permitted_by = answered_by
    return call
