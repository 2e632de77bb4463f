"""Queues turns once per cause, and runs each on one node at a time."""

import asyncio
import logging
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final

from comity.audit.events import AuditResult, AuditType
from comity.audit.log import AuditLog
from comity.errors import TIMEOUT, UPSTREAM_FAILED, MalformedMessage, Unavailable
from comity.inference.messages import text_of
from comity.live.audit import LiveAuditEntry, record_entry
from comity.live.turns import model
from comity.live.turns.model import OutputContext, StoredTurn, TurnHandle, TurnRequest, TurnState
from comity.live.turns.runner import TurnDependencies, TurnOutput, TurnOutputs, TurnRunner
from comity.toolkit.jobs import QueuedJob
from comity.toolkit.work_queue import RunnerSettings, WorkQueueRunner

log = logging.getLogger(__name__)

POLL_INTERVAL: Final = timedelta(seconds=1)
LEASE: Final = timedelta(seconds=30)
MAX_WAIT: Final = timedelta(hours=1)
MAX_PAUSE: Final = timedelta(minutes=1)
PRUNE_INTERVAL: Final = timedelta(minutes=10)
_AUDIT_RESULTS: Final = {
    TurnState.DONE: AuditResult.SUCCESS,
    TurnState.WITHHELD: AuditResult.BLOCKED,
}


@dataclass(frozen=True, slots=True)
class TurnTiming:
    """How often a node polls for turns, and how long it may hold a turn without a renewal."""

    poll_interval: timedelta = POLL_INTERVAL
    lease: timedelta = LEASE


class TurnWorker:
    """Queues and runs the turns of this node (`comity.live.turns.model.TurnStarter`)."""

    def __init__(
        self,
        dependencies: TurnDependencies,
        audit: AuditLog | None,
        timing: TurnTiming | None = None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.outputs = TurnOutputs(dependencies.hide)
        self.store = dependencies.store
        self.clock = clock
        self._dependencies = dependencies
        self._turn_runner = TurnRunner(dependencies)
        self._audit = audit
        self._timing = timing or TurnTiming()
        self.runner = WorkQueueRunner(
            "turns",
            dependencies.store.jobs,
            self._handle,
            RunnerSettings(
                dependencies.settings.max_concurrent,
                lease=self._timing.lease,
                poll_interval=self._timing.poll_interval,
                prune_interval=PRUNE_INTERVAL,
                # The end of a turn makes the next one of its conversation available.
                looks_after_each=True,
            ),
            clock=clock,
            prune=self._prune if dependencies.settings.retention else None,
        )

    # The interface for other parts.

    async def start(self, request: TurnRequest) -> TurnHandle:
        """Queue a turn. Raises Unavailable, and MalformedMessage if it cannot be stored."""
        depth = max(
            request.cause.depth, self._dependencies.turn_depth.depth_of(request.cause.server)
        )
        request = replace(request, cause=replace(request.cause, depth=depth))
        new = f"inf_{secrets.token_hex(12)}"
        most = self._dependencies.settings.max_message_chars
        begun = await self.store.begin(model.to_stored_turn(request, new, self.clock(), most))
        if begun.id == new:
            self._record_audit(AuditType.TURN_STARTED, begun)
            self.runner.wakeup.set()
        return TurnHandle(begun.id, begun.conversation, is_new=begun.id == new)

    async def wait_for_output(self, inference: str) -> str:
        try:
            async with asyncio.timeout(MAX_WAIT.total_seconds()):
                turn = await self._wait_until_ended(inference)
        except TimeoutError:
            raise Unavailable(f"turn {inference} takes very long", TIMEOUT) from None
        if turn.state is not TurnState.DONE:
            raise Unavailable(turn.facts.error or "the turn failed", UPSTREAM_FAILED)
        return text_of(turn.said)

    async def _wait_until_ended(self, inference: str) -> StoredTurn:
        while True:
            turn = await self.store.get(inference)
            if turn is None:
                raise Unavailable(f"there is no turn {inference!r:.80}")
            if not turn.state.is_open:
                return turn
            await self._wait_for_change(inference, self._timing.poll_interval)

    async def wait_for_progress(
        self, inference: str, known: int, timeout: timedelta
    ) -> tuple[StoredTurn, str]:
        """Wait up to `timeout` for output beyond `known`, and return the turn with that output."""
        words = self.outputs.get(inference)
        if words is not None:
            await words.wait_for_more(known, timeout.total_seconds())
        turn = await self.store.get(inference)
        if turn is None:
            raise Unavailable(f"there is no turn {inference!r:.80}")
        if words is None and turn.state.is_open:
            # Another node runs the turn.
            await asyncio.sleep(min(timeout, self._timing.poll_interval).total_seconds())
            turn = await self.store.get(inference) or turn
        whole = "" if words is None else words.shown_text
        if not turn.state.is_open and text_of(turn.said).startswith(whole):
            whole = text_of(turn.said)
        return turn, whole[known:]

    async def _wait_for_change(self, inference: str, timeout: timedelta) -> None:
        words = self.outputs.get(inference)
        if words is None or words.is_over:
            await asyncio.sleep(min(timeout.total_seconds(), 0.2))
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout.total_seconds()):
                await words.wait_until_over()

    # Running turns.

    async def stop(self) -> None:
        """Stop, and leave unfinished turns to other nodes."""
        await self.runner.stop()
        self._dependencies.after.stop()

    async def _prune(self, now: datetime) -> None:
        await self.store.prune(now - self._dependencies.settings.retention)

    async def _handle(self, job: QueuedJob) -> None:
        """Run a claimed turn to its end."""
        turn = await self.store.read(job)
        if turn is None:
            raise Unavailable(f"there is no turn for job {job.number}")
        words = self.outputs.open(turn.id)
        try:
            await self._run_turn(job, turn, words)
        finally:
            words.end()

    async def _run_turn(self, job: QueuedJob, turn: StoredTurn, output: TurnOutput) -> None:
        try:
            if turn.state is TurnState.WAITING:
                self._stream_to_observers(turn, output)
                turn = await self._decide(job, turn, output)
            if turn.state is TurnState.DECIDED:
                output.finish(text_of(turn.said))
                turn = await self._deliver(job, turn)
        except (Unavailable, MalformedMessage) as error:
            turn = await self._handle_failure(job, turn, error)
        except Exception:
            log.exception("A turn failed because of an internal error")
            bug = MalformedMessage("the host failed", UPSTREAM_FAILED)
            turn = await self._handle_failure(job, turn, bug)
        if not turn.state.is_open:
            self._record_audit(AuditType.TURN_ENDED, turn)

    async def _decide(self, job: QueuedJob, turn: StoredTurn, output: TurnOutput) -> StoredTurn:
        save = partial(self._save, job)
        try:
            async with asyncio.timeout(self._dependencies.settings.timeout.total_seconds()):
                decided = await self._turn_runner.decide(turn, output, save)
        except TimeoutError:
            raise MalformedMessage("the turn took too long", TIMEOUT) from None
        await save(decided)
        return decided

    async def _deliver(self, job: QueuedJob, turn: StoredTurn) -> StoredTurn:
        problem = await self._turn_runner.deliver(turn)
        if problem and turn.attempts < self._dependencies.settings.max_attempts:
            log.info("The reply of turn %s will be sent again later: %s", turn.id, problem)
            if not await self.store.retry(job, turn, self._retry_time(turn)):
                raise _claim_lost_error(turn)
            return turn
        error = problem or turn.facts.error
        ends_as = TurnState.FAILED if problem else turn.facts.ends_as
        ended = replace(
            turn,
            state=ends_as,
            facts=replace(turn.facts, error=error),
            ended_at=self.clock(),
        )
        await self._save(job, ended)
        self._turn_runner.notify_observers(ended)
        return ended

    async def _handle_failure(
        self, job: QueuedJob, turn: StoredTurn, error: Unavailable | MalformedMessage
    ) -> StoredTurn:
        # Progress that was stored stays: the next attempt continues from there.
        turn = await self.store.get(turn.id) or turn
        after = error.retry_after if isinstance(error, Unavailable) else None
        may_try = isinstance(error, Unavailable) and error.fault.retryable
        is_long = after is not None and after > MAX_PAUSE
        if may_try and not is_long and turn.attempts < self._dependencies.settings.max_attempts:
            if not await self.store.retry(job, turn, self._retry_time(turn, after)):
                raise _claim_lost_error(turn)
            return turn
        facts = replace(turn.facts, error=self._dependencies.hide(str(error)[:1_000]))
        ended = replace(turn, state=TurnState.FAILED, facts=facts, ended_at=self.clock())
        await self._save(job, ended)
        log.warning("turn %s failed: %s", turn.id, facts.error)
        return ended

    def _retry_time(self, turn: StoredTurn, after: timedelta | None = None) -> datetime:
        return self.clock() + max(after or timedelta(0), self._timing.poll_interval * turn.attempts)

    async def _save(self, job: QueuedJob, turn: StoredTurn) -> None:
        if not await self.store.write(job, turn):
            raise _claim_lost_error(turn)

    def _stream_to_observers(self, turn: StoredTurn, output: TurnOutput) -> None:
        """Stream the output of a turn to observers."""
        for place in turn.request_fields["say_in"]:
            saying = OutputContext(turn.id, turn.conversation, place)

            def show(index: int, delta: str, saying: OutputContext = saying) -> None:
                places = self._dependencies.output_sink()
                if places is not None:
                    places.show_chunk(saying, index, delta)

            output.listeners.append(show)

    def _record_audit(self, type: AuditType, turn: StoredTurn) -> None:
        errand, facts = turn.request_fields, turn.facts
        details: dict[str, object] = {
            "conversation": turn.conversation,
            "turn": turn.index,
            "cause": {"origin": errand["origin"], "key": turn.cause[:200]},
        }
        result = AuditResult.PENDING
        if type is AuditType.TURN_ENDED:
            result = _AUDIT_RESULTS.get(turn.state, AuditResult.FAILURE)
            details |= {
                "model": facts.model,
                "read": facts.usage.input,
                "wrote": facts.usage.output,
                "injected": list(facts.injected),
                "rewrote": list(facts.rewrote),
                "tools_used": facts.tools,
                "attempts": turn.attempts,
                **({"reason": facts.error} if facts.error else {}),
            }
        deed = LiveAuditEntry(
            errand["server"],
            feature=errand["feature"],
            inference=turn.id,
            outcome=turn.state,
            by=errand["party"],
            details=details,
        )
        record_entry(self._audit, type, deed, result)


def _claim_lost_error(turn: StoredTurn) -> Unavailable:
    """Return the error of a turn whose lease expired, so that another node claimed it."""
    return Unavailable(f"turn {turn.id} was taken over by another node", UPSTREAM_FAILED)
