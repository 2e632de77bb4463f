"""Retries of failed calls, and calls of fallback tools."""

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Literal, cast

import msgspec
from msgspec import Raw

from comity.errors import (
    CUT_OFF,
    FAULT_OF_MGP,
    INTERRUPTED,
    MGP_CODES,
    TIMEOUT,
    UPSTREAM_FAILED,
    UPSTREAM_SLOW,
    Fault,
    MalformedMessage,
    Unavailable,
)
from comity.gateway.era_bridge import BridgedCall, BridgeRoute
from comity.mcp import eras, jsonrpc
from comity.mcp.conversation import Conversation
from comity.mcp.entries import CatalogEntry
from comity.mcp.jsonrpc import UNSET, Frame
from comity.mcp.mgp import NegotiatedTerms
from comity.mcp.protocol import SEPARATOR, public_name
from comity.mcp.refusals import Refusal
from comity.policy.risk import ServerPolicy, ToolPolicy
from comity.sessions.calls import Call, PendingMessage
from comity.telemetry.metrics import MetricFamily
from comity.telemetry.outcomes import ERROR, OK
from comity.toolkit.background import BackgroundTasks
from comity.toolkit.resilience import Jitter, RetrySchedule

type Strategy = Literal["immediate", "fixed_delay", "exponential_backoff"]

FIRST_RETRY_DELAY: Final = timedelta(milliseconds=250)
"""The delay before the first retry, unless the server names one."""
MAX_RETRY_DELAY: Final = timedelta(seconds=30)
"""The longest delay. If a server asks for a longer one, the call is not retried."""
RETRY_JITTER: Final = Jitter(1.0, 1.25)
"""Factors of a delay. A delay may be longer than the server asks for, but never shorter."""

# A tuple, because a server may send an unhashable value, which a set lookup cannot take.
_STRATEGIES: Final = ("immediate", "fixed_delay", "exponential_backoff")
_UNCERTAIN_FAULTS: Final = frozenset(
    {INTERRUPTED, TIMEOUT, UPSTREAM_FAILED, UPSTREAM_SLOW, CUT_OFF}
)
_NEVER_RETRIED_FAULTS: Final = frozenset({TIMEOUT})
"""After the deadline of the call no time is left for another attempt."""


@dataclass(frozen=True, slots=True)
class RetryPlan:
    """The retries that an operator allows for one tool.

    `fallback_tool` is empty if there is none.
    """

    idempotent: bool = False
    max_retries: int = 0
    fallback_tool: str = ""


@dataclass(frozen=True, slots=True)
class AttemptFailure:
    """The properties of a failed attempt that decide on a retry."""

    reason: str
    retryable: bool
    was_not_run: bool = False
    retry_after: timedelta = timedelta(0)
    strategy: Strategy = "exponential_backoff"
    max_retries: int | None = None


def failure_from_server(frame: Frame) -> AttemptFailure:
    """Describe an error that a server sent.

    Without MGP's error fields, or with invalid ones, the failure is not retryable.
    """
    error = jsonrpc.error_of(frame)
    assert error is not None
    data = _members(error.data)
    said = _members(data.get("_mgp"))
    known = FAULT_OF_MGP.get(error.code)
    why = "server_error" if known is None else known.error_type
    if error.code not in MGP_CODES or said.get("retryable") is not True:
        return AttemptFailure(why, retryable=False)
    after, most = _number(said.get("retry_after_ms")), _number(said.get("max_retries"))
    strategy = said.get("retry_strategy")
    return AttemptFailure(
        why,
        retryable=True,
        # One day exceeds every wait that the gateway makes, so larger values make no difference.
        retry_after=timedelta(milliseconds=min(after or 0, 86_400_000)),
        strategy=strategy if strategy in _STRATEGIES else "exponential_backoff",
        max_retries=None if most is None else int(min(most, 1_000)),
    )


def failure_of_fault(
    fault: Fault, retry_after: timedelta | None, *, was_sent: bool
) -> AttemptFailure:
    """Describe a failure that the gateway itself detected."""
    not_run = not (was_sent and fault in _UNCERTAIN_FAULTS)
    retryable = fault.retryable and fault not in _NEVER_RETRIED_FAULTS
    strategy: Strategy = "exponential_backoff" if retry_after is None else "fixed_delay"
    return AttemptFailure(
        fault.error_type, retryable, not_run, retry_after or timedelta(0), strategy
    )


def may_be_retried(plan: RetryPlan, failure: AttemptFailure) -> bool:
    return failure.retryable and (plan.idempotent or failure.was_not_run)


def retry_delay(
    plan: RetryPlan, failure: AttemptFailure, attempts: int, random_value: float
) -> timedelta | None:
    """Return the delay before the next attempt, or None if there is to be no attempt.

    `attempts` is the number of retries so far. `random_value` in [0, 1) spreads the retries of
    many calls.
    """
    most = (
        plan.max_retries
        if failure.max_retries is None
        else min(plan.max_retries, failure.max_retries)
    )
    if (
        not may_be_retried(plan, failure)
        or attempts >= most
        or failure.retry_after > MAX_RETRY_DELAY
    ):
        return None
    first = failure.retry_after
    if failure.strategy != "immediate":
        first = first or FIRST_RETRY_DELAY
    longest = MAX_RETRY_DELAY if failure.strategy == "exponential_backoff" else first
    return RetrySchedule(first, longest, jitter=RETRY_JITTER).delay(attempts + 1, random_value)


def _members(value: object) -> dict[str, object]:
    return cast("dict[str, object]", value) if isinstance(value, dict) else {}


def _number(value: object) -> float | None:
    """Return a non-negative number, or None for any other value."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return max(value, 0)


log = logging.getLogger(__name__)

MAX_CACHED_PLANS: Final = 100_000
"""The most plans in the cache, which is emptied when it is full."""
FALLBACK_KEY: Final = "dev.comity/fallback"
"""The `_meta` key that says that another tool gave a result."""

type Told = Callable[[Call, int, str], None]
"""A listener for retries. It receives the call, the number of the attempt and the reason."""


@dataclass(frozen=True, slots=True)
class RetryActions:
    """How an endpoint sends a call again, and how it sends another call through all checks.

    At the endpoint of one server tools have their own names, and other servers' tools do not exist.
    """

    # Whether the caller may still make the call. Asked right before each retry.
    may_repeat: Callable[[], Awaitable[bool]]
    retry: Callable[[], Coroutine[Any, Any, None]]
    call_fallback: Callable[[Call, Frame], Awaitable[None]]
    is_for_all_servers: bool
    # A view has other names, and its fixed arguments do not suit another tool.
    has_fallback: bool = True


class RetryService:
    """Decides which tools may be called again, and counts every attempt."""

    def __init__(
        self,
        policy_of: Callable[[str], ServerPolicy | None] = lambda _: None,
        max_read_only_retries: int = 0,
        random_value: Callable[[], float] = random.random,
        *,
        is_enabled: bool = True,
    ) -> None:
        # While retries are off for all tools, endpoints skip the lookup of a plan.
        self.is_enabled = is_enabled
        self._policy_of = policy_of
        self._max_read_only_retries = max_read_only_retries
        self._plan_by_tool: dict[
            tuple[str, str], tuple[ServerPolicy | None, bytes, RetryPlan | None]
        ] = {}
        self._retry_counts: Counter[tuple[str, str, str]] = Counter()
        self._fallback_counts: Counter[tuple[str, str]] = Counter()
        self.random_value = random_value
        self.background_tasks = BackgroundTasks("calls that are made again")
        self.retry_listeners: list[Told] = [self._count_retry]

    def set_enabled(self, is_enabled: bool) -> None:
        self.is_enabled = is_enabled

    def watch_call(
        self, call: Call, entry: CatalogEntry, frame: Frame, actions: RetryActions
    ) -> None:
        """Retry a call if it fails and the plan of its tool allows that."""
        plan = self.plan_of(entry)
        # A reply of the client to a question belongs to one attempt only, so such a call is not
        # retried.
        call.tool = entry.name
        # A call that is sent anew after a sign-in has its attempts already.
        is_watched = call.retrier is not None
        if plan is not None and not is_watched and eras.input_responses_in(frame)[1] is None:
            call.retrier = RetryState(self, plan, entry, frame, actions)

    def plan_of(self, entry: CatalogEntry) -> RetryPlan | None:
        policy = self._policy_of(entry.server)
        known = self._plan_by_tool.get((entry.server, entry.name))
        # A new policy or definition is a new object, so identity tells whether the plan is current.
        if known is not None and known[0] is policy and known[1] is entry.definition:
            return known[2]
        tool = ToolPolicy() if policy is None else policy.tool_policy(entry.name)
        plan = RetryPlan(tool.idempotent, tool.max_retries, tool.fallback_tool)
        if self._max_read_only_retries and not tool.idempotent and _is_read_only(entry.definition):
            plan = RetryPlan(
                True, tool.max_retries or self._max_read_only_retries, tool.fallback_tool
            )
        found = None if plan == RetryPlan() else plan
        if len(self._plan_by_tool) >= MAX_CACHED_PLANS:
            # At the endpoint of one server a caller can send any number of invented tool names.
            self._plan_by_tool.clear()
        self._plan_by_tool[entry.server, entry.name] = (policy, entry.definition, found)
        return found

    def notify_retry(self, call: Call, attempt: int, reason: str) -> None:
        for hear in self.retry_listeners:
            hear(call, attempt, reason)

    def count_fallback(self, entry: CatalogEntry) -> None:
        self._fallback_counts[entry.server, entry.name] += 1

    def metric_families(self) -> list[MetricFamily]:
        return [
            MetricFamily(
                "comity_retries_total",
                "counter",
                "Calls that the gateway made again by itself, by why the attempt before failed.",
                [
                    ((("server", server), ("tool", tool), ("reason", why)), number)
                    for (server, tool, why), number in self._retry_counts.items()
                ],
            ),
            MetricFamily(
                "comity_fallbacks_total",
                "counter",
                "Calls that were made at another tool, because this one failed.",
                [
                    ((("server", server), ("tool", tool)), number)
                    for (server, tool), number in self._fallback_counts.items()
                ],
            ),
        ]

    def _count_retry(self, call: Call, attempt: int, reason: str) -> None:
        server = "" if call.counters is None else call.counters.server
        self._retry_counts[server, call.tool or "", reason] += 1
        told = {"trace_id": call.trace_id()}
        log.info("server %r: attempt %d, after %s", server, attempt + 1, reason, extra=told)


class RetryState:
    """The attempts of one call. Between attempts it takes the place of the call's connection."""

    def __init__(
        self,
        retries: RetryService,
        plan: RetryPlan,
        entry: CatalogEntry,
        frame: Frame,
        actions: RetryActions,
    ) -> None:
        self.conversation: Conversation[PendingMessage] = Conversation()
        self.mgp: NegotiatedTerms | None = None
        self.was_sent = False
        self.on_never_sent: Callable[[], object] | None = None
        self._retries = retries
        self._plan = plan
        self._entry = entry
        self._frame = frame
        self._actions = actions
        self._attempts = 0
        self._is_over = False
        self._end: Callable[[], None] = _ignore_cancel
        self._timer: asyncio.TimerHandle | None = None

    @property
    def idempotent(self) -> bool:
        return self._plan.idempotent

    @property
    def fallback_tool(self) -> str:
        """The tool that the client may call instead, unless the gateway has already tried it."""
        return "" if self._is_over else self._fallback_name

    @property
    def _fallback_name(self) -> str:
        """The fallback tool by its name at this endpoint, or empty if the endpoint lacks it."""
        named, server = self._plan.fallback_tool, self._entry.server
        if not self._actions.has_fallback:
            return ""
        own = named.removeprefix(f"{server}{SEPARATOR}")
        if not named or SEPARATOR in own:
            return named if self._actions.is_for_all_servers else ""
        return public_name(server, own) if self._actions.is_for_all_servers else own

    def survives_error(self, call: Call, frame: Frame) -> bool:
        """Return whether the call continues after an error from its server."""
        return not self._is_over and self._continue_after(
            call, failure_from_server(frame), lambda: call.deliver_answer(frame)
        )

    def survives_failure(self, call: Call, error: Unavailable | MalformedMessage) -> bool:
        """Return whether the call continues after a failure that the gateway detected."""
        after = error.retry_after if isinstance(error, Unavailable) else None
        failure = failure_of_fault(error.fault, after, was_sent=self._is_sent(call))
        return not self._is_over and self._continue_after(call, failure, lambda: call.fail(error))

    def _continue_after(self, call: Call, failure: AttemptFailure, end: Callable[[], None]) -> bool:
        self.was_sent = self._is_sent(call)
        pause = retry_delay(self._plan, failure, self._attempts, self._retries.random_value())
        left = 0.0 if call.active_calls is None else call.active_calls.seconds_left(call)
        # No retry begins that could not start before the deadline of the call.
        if pause is None or pause.total_seconds() >= left or call.client_stream.is_final:
            self._report_never_sent()
            return self._call_fallback(call, failure, end)
        self._attempts += 1
        call.connection, call.outgoing_id = self, 0
        self._end = end
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(
            pause.total_seconds(), self._begin_attempt, call, failure.reason
        )
        return True

    def _begin_attempt(self, call: Call, reason: str) -> None:
        self._timer = None
        self._retries.background_tasks.start(self._attempt(call, reason))

    def _report_never_sent(self) -> None:
        report, self.on_never_sent = self.on_never_sent, None
        if report is not None and not self.was_sent:
            report()

    async def _attempt(self, call: Call, reason: str) -> None:
        if call.client_stream.is_final:
            self._report_never_sent()
            return
        # The grant may have ended since the last attempt.
        if not await self._actions.may_repeat():
            self._stop(call)
            return
        if call.client_stream.is_final:
            self._report_never_sent()
            return
        self._retries.notify_retry(call, self._attempts, reason)
        try:
            await self._actions.retry()
        except (Unavailable, MalformedMessage) as error:
            call.fail(error)

    def _stop(self, call: Call) -> None:
        """End the call with the failure of its last attempt, because no other is allowed."""
        self._is_over = True
        if not self.was_sent:
            call.connection = None
        self._report_never_sent()
        if not call.client_stream.is_final:
            self._end()

    def _call_fallback(self, call: Call, failure: AttemptFailure, end: Callable[[], None]) -> bool:
        allowed = may_be_retried(self._plan, failure) and not call.client_stream.is_final
        if not self._fallback_name or not allowed:
            return False
        self._is_over = True
        self._retries.count_fallback(self._entry)
        params = {**self._frame.parameters, "name": self._fallback_name}
        frame = jsonrpc.with_params(self._frame, jsonrpc.to_raw(params))
        first = self._entry.key if self._actions.is_for_all_servers else self._entry.name
        other = FallbackCall(frame, call, first, end)
        self._retries.background_tasks.start(other.start_with(self._actions))
        return True

    def _is_sent(self, call: Call) -> bool:
        return self.was_sent or (call.connection is not None and call.connection is not self)

    # The methods of a connection, which this object replaces between attempts.

    def send_message(self, frame: Frame) -> None:
        """Do nothing: no server is connected between attempts."""

    def cancel_request(self, outgoing_id: int, reason: Raw | None) -> None:
        """Cancel the next attempt. The client withdrew its call, or the deadline passed."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._report_never_sent()

    def throttle(self, outgoing_id: int, paused: bool) -> None:
        """Do nothing: no stream is open between attempts."""


class FallbackCall(BridgedCall):
    """A call of the fallback tool on behalf of a client's failed call."""

    def __init__(
        self,
        frame: Frame,
        client_call: Call,
        original_tool: str,
        report_original_error: Callable[[], None],
    ) -> None:
        super().__init__(frame, client_call, BridgeRoute("", _ignore_send))
        self.active_calls = None
        self._recorder = (
            None if client_call.active_calls is None else client_call.active_calls.outcome_recorder
        )
        self._original_tool = original_tool
        self._report_original_error = report_original_error
        # The conversions of the first tool's protocol version do not apply to the fallback tool.
        client_call.adapt_answer, client_call.adapt_notification = (
            self._adapt_answer,
            self._adapt_notification,
        )

    async def start_with(self, actions: RetryActions) -> None:
        try:
            await actions.call_fallback(self, self.frame)
        except (Unavailable, MalformedMessage):
            self._give_up()

    def deliver_answer(self, frame: Frame, status: int = 200) -> None:
        if frame.error is not UNSET or _is_input_required(frame):
            # The client called another tool, so it must not receive questions from this one.
            self._give_up()
            self.detach_and_cancel(None)
        else:
            self._record_outcome(OK)
            super().deliver_answer(frame, status)

    def fail(self, error: Unavailable | MalformedMessage) -> None:
        self._give_up()

    def refuse_with(self, refusal: Refusal) -> None:
        self._give_up()

    def pause_deadlines(self) -> None:
        if self.current_call is not None:
            self.current_call.pause_deadlines()

    def resume_deadlines(self) -> None:
        if self.current_call is not None:
            self.current_call.resume_deadlines()

    def _give_up(self) -> None:
        """Drop the result of the fallback tool, and report the error of the original call."""
        self._record_outcome(ERROR)
        front, self.current_call = self.current_call, None
        if front is not None:
            front.adapt_answer = front.adapt_notification = None
            self._report_original_error()

    def _record_outcome(self, outcome: str) -> None:
        """Record the outcome, because the audit log already holds the intent to run the call."""
        if self._recorder is not None and self.record is not None:
            self._recorder.record_outcome(self, outcome, None, _ignore_cancel)

    def _adapt_answer(self, frame: Frame) -> Frame:
        frame = frame if self.adapt_answer is None else self.adapt_answer(frame)
        assert frame.result is not UNSET
        result = jsonrpc.decode_members(frame.result)
        meta = jsonrpc.decode_members(result["_meta"]) if "_meta" in result else {}
        named = {"tool": self.frame.parameters["name"], "instead_of": self._original_tool}
        told = jsonrpc.to_raw({**result, "_meta": {**meta, FALLBACK_KEY: named}})
        return msgspec.structs.replace(frame, result=told)

    def _adapt_notification(self, frame: Frame) -> Frame | None:
        return frame if self.adapt_notification is None else self.adapt_notification(frame)


def _is_input_required(frame: Frame) -> bool:
    try:
        return eras.required_input_in(frame) is not None
    except MalformedMessage:
        return True


def _ignore_cancel() -> None:
    """Do nothing: the client receives the outcome of its own call only."""


def _ignore_send(call: Call, frame: Frame) -> None:
    """Do nothing: the endpoint sends the call."""


def _is_read_only(definition: bytes) -> bool:
    """Return whether a tool's annotations declare it read-only."""
    try:
        said = jsonrpc.decode_members(Raw(definition)).get("annotations", Raw(b"{}"))
        return bytes(jsonrpc.decode_members(said).get("readOnlyHint", b"")) == b"true"
    except MalformedMessage:
        return False
