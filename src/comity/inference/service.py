"""Chooses a model for each request, asks it, and falls back to others if it fails."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Final

from comity.audit.events import AuditResult, AuditType
from comity.audit.log import AuditLog
from comity.errors import (
    MODEL_REFUSED,
    NO_MODEL,
    UPSTREAM_DOWN,
    UPSTREAM_SLOW,
    MalformedMessage,
    Unavailable,
)
from comity.inference.budgets import (
    BudgetHold,
    BudgetPayer,
    BudgetService,
    max_cost_of,
    most_tokens,
)
from comity.inference.messages import FinishReason, ModelInfo, TokenUsage
from comity.inference.metrics import ModelMetrics
from comity.inference.model import (
    UNPRICED,
    ZERO_AMOUNT,
    Amount,
    InferenceRequest,
    Model,
    ModelChoice,
    ModelCompletion,
    ModelPrompt,
    ModelRoute,
    OnPiece,
    Price,
    ReplyChunk,
    RouteQuery,
    rank_models,
    unique_models,
)
from comity.telemetry.metrics import MetricFamily
from comity.telemetry.tracing import ModelTrace, ModelTraceOutcome, Tracer
from comity.toolkit.background import draw_delay
from comity.toolkit.resilience import (
    CircuitBreaker,
    CircuitEvent,
    RetrySchedule,
)

MAX_PINS: Final = 10_000
CIRCUIT_REST: Final = timedelta(seconds=30)

type Clock = Callable[[], datetime]


@dataclass(frozen=True, slots=True)
class RoutingConfig:
    """The operator's routes, the default model, and the fallbacks in their order."""

    routes: Sequence[ModelRoute] = ()
    default: str = ""
    fallbacks: Sequence[str] = ()


class ModelRouter:
    """Decides which models a request goes to, and keeps conversations on one model."""

    def __init__(self, plan: RoutingConfig, windows: Mapping[str, int]) -> None:
        self._routing_config = plan
        self._windows = windows
        self._model_by_conversation: OrderedDict[tuple[str, str, str], str] = OrderedDict()

    def chain(self, query: RouteQuery) -> list[ModelChoice]:
        """Return the models to ask, in order. The list may be empty."""
        found = rank_models(
            self._routing_config.routes, self._routing_config.default, query, self._windows
        )
        pinned = self._pinned_model(query)
        if pinned is not None:
            found.insert(0, pinned)
        fallbacks = [ModelChoice(each, "fallback") for each in self._routing_config.fallbacks]
        # After the first choice only fallbacks follow, because other routes serve other requests.
        chain = [*found[:1], *(each for each in fallbacks if each.model in self._windows)]
        return unique_models(chain)

    def pin(self, query: RouteQuery, model: str) -> None:
        """Keep a conversation on this model."""
        if not query.conversation:
            return
        self._model_by_conversation[_key(query)] = model
        self._model_by_conversation.move_to_end(_key(query))
        while len(self._model_by_conversation) > MAX_PINS:
            self._model_by_conversation.popitem(last=False)

    def _pinned_model(self, query: RouteQuery) -> ModelChoice | None:
        model = self._model_by_conversation.get(_key(query)) if query.conversation else None
        said = any(each.conversation == query.conversation for each in self._routing_config.routes)
        if model is None or said or self._windows.get(model, 0) < query.tokens:
            return None
        return ModelChoice(model, f"conversation {query.conversation}")


def _key(query: RouteQuery) -> tuple[str, str, str]:
    return query.conversation, query.server, query.feature


log = logging.getLogger(__name__)

MAX_PAUSE: Final = timedelta(seconds=30)
RETRIES: Final = RetrySchedule(timedelta(milliseconds=500), timedelta(seconds=8), max_attempts=3)
_CHARACTERS_PER_TOKEN: Final = 4


@dataclass(frozen=True, slots=True)
class ModelSlot:
    """A configured model with its price and its output limit."""

    model: Model
    price: Price = UNPRICED
    max_output: int = 4_096


@dataclass(slots=True)
class _InferenceRun:
    """One request to one model, with its attempts and its cost."""

    request: InferenceRequest
    prompt: ModelPrompt
    choice: ModelChoice
    seat: ModelSlot
    on_chunk: OnPiece | None
    received_characters: int = 0
    attempts: int = 0
    spent: Amount = ZERO_AMOUNT
    # The estimated cost of an attempt that failed.
    lost: TokenUsage = field(default_factory=TokenUsage)

    def on_reply_chunk(self, chunk: ReplyChunk) -> None:
        self.received_characters += len(chunk.text)
        if self.on_chunk is not None:
            self.on_chunk(chunk)

    def lose(self, *, was_read: bool) -> None:
        """Estimate the cost of an interrupted reply, because the provider charges for it."""
        if was_read or self.received_characters:
            self.lost = TokenUsage(
                most_tokens(self.prompt) // 2, self.received_characters // _CHARACTERS_PER_TOKEN
            )


class InferenceService:
    """Answers inference requests with the configured models."""

    def __init__(
        self,
        seats: Mapping[str, ModelSlot],
        plan: RoutingConfig,
        budget_service: BudgetService,
        audit_log: AuditLog | None = None,
        clock: Clock = lambda: datetime.now(UTC),
        *,
        deadline: timedelta = timedelta(minutes=5),
        tracer: Tracer | None = None,
    ) -> None:
        self.model_slots = seats
        self.budget_service = budget_service
        self.deadline = deadline
        self.circuits = {name: CircuitBreaker(rest=CIRCUIT_REST.total_seconds()) for name in seats}
        windows = {name: member.model.info.context_window for name, member in seats.items()}
        self._router = ModelRouter(plan, windows)
        self._audit_log = audit_log
        self._clock = clock
        self._tracer = tracer
        self._metrics = ModelMetrics()

    def usage_totals(self) -> tuple[int, int]:
        """Return the tokens of all models since the start, and their cost in millionths."""
        return self._metrics.totals()

    def metric_families(self) -> list[MetricFamily]:
        return self._metrics.families()

    def info(self, server: str = "", feature: str = "", conversation: str = "") -> ModelInfo:
        return self.first_model_slot(RouteQuery(server, feature, conversation)).model.info

    def first_model_slot(self, query: RouteQuery) -> ModelSlot:
        """Return the model that would be asked first. Raises Unavailable."""
        return self.model_slots[self._chain(query)[0].model]

    async def infer(
        self, request: InferenceRequest, on_chunk: OnPiece | None = None
    ) -> ModelCompletion:
        sought = _route_query(request)
        chain = self._chain(sought)
        failure: Unavailable | None = None
        for choice in chain:
            rest = self.circuits[choice.model].take_probe(self._seconds())
            if rest is not None:
                reason = f"model {choice.model!r} is failing"
                failure = failure or Unavailable(reason, UPSTREAM_DOWN, timedelta(seconds=rest))
                continue
            trying = self._new_run(request, choice, on_chunk)
            try:
                reply = await self._run_with_budget(trying)
            except Unavailable as error:
                # The client has already received text, so no other model can start over.
                if trying.received_characters or _is_of_budget(error):
                    raise
                failure = error
                continue
            if choice is chain[0]:
                self._router.pin(sought, choice.model)
            return reply
        assert failure is not None
        raise failure

    async def ask_model(
        self, name: str, request: InferenceRequest
    ) -> tuple[ModelCompletion, Amount]:
        """Ask this model regardless of routes.

        Return the reply and its cost. Raises Unavailable.
        """
        if name not in self.model_slots:
            raise Unavailable(f"there is no model {name!r:.80}", NO_MODEL)
        trying = self._new_run(request, ModelChoice(name, "asked for by name"), None)
        return await self._run_with_budget(trying), trying.spent

    async def close(self) -> None:
        for member in self.model_slots.values():
            await member.model.close()

    def seconds_until_retry(self, name: str) -> float | None:
        """Return for how many seconds a failing model is skipped. None if it can be asked."""
        return self.circuits[name].seconds_until_retry(self._seconds())

    def _seconds(self) -> float:
        return self._clock().timestamp()

    def _new_run(
        self, request: InferenceRequest, choice: ModelChoice, on_chunk: OnPiece | None
    ) -> _InferenceRun:
        member = self.model_slots[choice.model]
        limit = min(request.prompt.max_tokens, member.max_output)
        prompt = replace(request.prompt, max_tokens=limit)
        return _InferenceRun(request, prompt, choice, member, on_chunk)

    def _chain(self, query: RouteQuery) -> list[ModelChoice]:
        chain = self._router.chain(query) if self.model_slots else []
        if not chain:
            raise Unavailable("there is no model for this; see `comity models`", NO_MODEL)
        return chain

    async def _run_with_budget(self, run: _InferenceRun) -> ModelCompletion:
        asked, member = run.request, run.seat
        spender = BudgetPayer(asked.party, asked.feature, run.choice.model)
        held = await self.budget_service.hold(spender, max_cost_of(run.prompt, member.price))
        usage, outcome = TokenUsage(), "failed"
        begun, trace = self._clock(), self._begin_trace(run)
        try:
            reply = await self._run_with_retries(run)
            usage, outcome = reply.usage, str(reply.finish)
            return reply
        except asyncio.CancelledError:
            run.lose(was_read=True)
            outcome = "cancelled"
            raise
        except Unavailable as error:
            outcome = error.fault.error_type
            raise
        finally:
            usage += run.lost
            # The shield records the cost even if the request is cancelled.
            await asyncio.shield(self._settle_budget(run, held, usage))
            took = self._clock() - begun
            self._record_audit(run, usage, outcome, took)
            self._metrics.add(run.choice.model, usage, run.spent, outcome, took)
            if trace is not None:
                is_answered = outcome in tuple(FinishReason)
                trace.ended(ModelTraceOutcome(outcome, is_answered, usage.input, usage.output))

    def _begin_trace(self, run: _InferenceRun) -> ModelTrace | None:
        if self._tracer is None:
            return None
        info = run.seat.model.info
        return self._tracer.begin_model(info.vendor, info.id, run.prompt.max_tokens)

    async def _settle_budget(self, run: _InferenceRun, hold: BudgetHold, usage: TokenUsage) -> None:
        run.spent = await self.budget_service.settle(hold, usage, run.seat.price)

    async def _run_with_retries(self, run: _InferenceRun) -> ModelCompletion:
        name = run.choice.model
        until = asyncio.get_running_loop().time() + self.deadline.total_seconds()
        while True:
            run.attempts += 1
            try:
                reply = await self._complete(run, until)
            except Unavailable as error:
                self.circuits[name].record(_circuit_event(error), self._seconds())
                run.lose(was_read=error.fault is UPSTREAM_SLOW)
                pause = _pause(run, error, until - asyncio.get_running_loop().time())
                if pause is None:
                    raise
                await asyncio.sleep(pause)
            except MalformedMessage as error:
                # An invalid reply is the model's fault, and not the caller's.
                raise Unavailable(f"model {name!r}: {error}", MODEL_REFUSED) from None
            else:
                self.circuits[name].record(CircuitEvent.ANSWERED, self._seconds())
                return reply

    async def _complete(self, run: _InferenceRun, until: float) -> ModelCompletion:
        on_piece = None if run.on_chunk is None else run.on_reply_chunk
        try:
            async with asyncio.timeout_at(until):
                return await run.seat.model.complete(run.prompt, on_piece)
        except TimeoutError:
            reason = f"model {run.choice.model!r} did not answer in time"
            raise Unavailable(reason, UPSTREAM_SLOW) from None

    def _record_audit(
        self, run: _InferenceRun, usage: TokenUsage, outcome: str, took: timedelta
    ) -> None:
        if self._audit_log is None:
            return
        asked, choice = run.request, run.choice
        ok = outcome in tuple(FinishReason)
        # A request that costs nothing can be repeated at will, so its events are rate limited.
        is_free = not ok and usage == TokenUsage()
        details: dict[str, object] = {
            "inference": asked.inference,
            "model": run.seat.model.info.id,
            "routed": choice.model,
            "reason": choice.reason,
            "input_tokens": usage.input,
            "output_tokens": usage.output,
            "cost": run.spent.money / 1_000_000,
            "outcome": outcome,
            "attempts": run.attempts,
            "ms": took // timedelta(milliseconds=1),
        }
        for name in ("feature", "conversation"):
            if getattr(asked, name):
                details[name] = getattr(asked, name)[:200]
        self._audit_log.record(
            AuditType.MODEL_CALLED,
            asked.party,
            server=asked.server,
            result=AuditResult.SUCCESS if ok else AuditResult.FAILURE,
            details=details,
            rate_key=f"{asked.party} {outcome}" if is_free else "",
        )


def _route_query(request: InferenceRequest) -> RouteQuery:
    prompt = request.prompt
    # Half of the maximum is the usual size. A prompt that may just fit is not sent elsewhere.
    tokens = most_tokens(prompt) // 2
    hint = request.hints.get("model")
    return RouteQuery(
        request.server,
        request.feature,
        request.conversation,
        tokens,
        hint if isinstance(hint, str) else "",
    )


def _pause(run: _InferenceRun, error: Unavailable, left: float) -> float | None:
    """Return the seconds until the next attempt. None if there is none."""
    if not error.fault.retryable or RETRIES.is_exhausted(run.attempts) or run.received_characters:
        return None
    own = draw_delay(RETRIES, run.attempts)
    pause = own if error.retry_after is None else max(own, error.retry_after)
    if pause > MAX_PAUSE or pause.total_seconds() >= left:
        return None
    return pause.total_seconds()


def _circuit_event(error: Unavailable) -> CircuitEvent:
    # A refusal concerns one request. It does not mean that the model is down.
    return CircuitEvent.ANSWERED if error.fault is MODEL_REFUSED else CircuitEvent.FAILED


def _is_of_budget(error: Unavailable) -> bool:
    return error.fault.error_type == "budget_exceeded"
