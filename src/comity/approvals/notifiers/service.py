"""Sends notices of approval requests: who gets one and when, retries, digests and escalations.

Each step is a job of the durable work queue. The key of a job says what it does, so that a job that
runs twice, or on two nodes, adds nothing twice. A job holds ids only; the request is read when a
message is sent.
"""

import asyncio
import hashlib
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Protocol

import msgspec
from msgspec.structs import replace

from comity.approvals.model import ApprovalRequest
from comity.approvals.notifiers.model import (
    PERSON_PREFIX,
    ApprovalNotice,
    NoticeOrder,
    NoticePhase,
    NoticeTask,
    NotifierChannel,
    NotifierSettings,
    change_label,
)
from comity.approvals.notifiers.recipients import ApproverDirectory
from comity.approvals.notifiers.rules import DeliveryPlan, matches, plan_delivery
from comity.approvals.service import ApprovalService
from comity.audit.events import AuditResult, AuditType
from comity.audit.log import AuditLog
from comity.errors import INVALID_PARAMS, NOTHING_HERE, MalformedMessage, Misconfigured, Unavailable
from comity.mcp.actors import GATEWAY, GROUP_PREFIX
from comity.telemetry.metrics import MetricFamily
from comity.toolkit.background import draw_delay
from comity.toolkit.jobs import (
    JobAdmission,
    JobOutcome,
    JobState,
    OnceKeys,
    QueuedJob,
    WorkQueue,
)
from comity.toolkit.resilience import RetrySchedule
from comity.toolkit.work_queue import RunnerSettings, WorkQueueRunner

log = logging.getLogger(__name__)

RETRY_SCHEDULE: Final = RetrySchedule(timedelta(seconds=2), timedelta(minutes=2), max_attempts=8)
SEND_TIMEOUT_SECONDS: Final = 60.0
MAX_ACTIVE_PER_NOTIFIER: Final = 4
MAX_DISPATCHES: Final = 8
BUSY_DELAY: Final = timedelta(milliseconds=500)
"""How long a message waits while its notifier sends others, or while the first one is sent."""

MAX_BUSY_DELAY: Final = timedelta(seconds=15)
"""How long a message waits at most for a notifier that is slow."""

REMEMBERED: Final = timedelta(days=14)
"""How long ended jobs are kept. Requests are open for at most a week."""

CLICKS_REMEMBERED: Final = timedelta(minutes=30)
"""How long clicks are remembered. The signature of a click is valid for 5 minutes."""

MAX_JOBS_OF_REQUEST: Final = 500
SENT: Final = "sent "
SKIPPED: Final = "skipped"

_FIRST_PHASES: Final = (NoticePhase.REQUESTED, NoticePhase.ESCALATED)
_order: Final = msgspec.json.Decoder(NoticeOrder)


class NoticeQueue(WorkQueue, Protocol):
    """The jobs of all notices."""

    async def enqueue(self, job: QueuedJob) -> JobAdmission | None: ...

    async def page(
        self, before: int = 0, limit: int = 100, group: str = ""
    ) -> Sequence[QueuedJob]: ...

    async def settle(self, job: QueuedJob, outcome: JobOutcome) -> bool: ...

    async def prune(self, ended_before: datetime) -> int: ...


class NoticeMetrics:
    """Counts the messages of this node."""

    def __init__(self) -> None:
        self.sent: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self.escalated: Counter[str] = Counter()

    def families(self) -> list[MetricFamily]:
        rows = (("sent", self.sent), ("failed", self.failed))
        return [
            MetricFamily(
                "comity_notices_total",
                "counter",
                "Messages about approval requests that this node sent or gave up.",
                [
                    ((("notifier", name), ("outcome", outcome)), count)
                    for outcome, counts in rows
                    for name, count in counts.items()
                ],
            ),
            MetricFamily(
                "comity_notices_escalated_total",
                "counter",
                "Approval requests that this node escalated without a decision in time.",
                [((("notifier", name),), count) for name, count in self.escalated.items()],
            ),
        ]


@dataclass(frozen=True, slots=True)
class ApprovalNotifier:
    """One notifier: its settings, and the channel that sends its messages."""

    settings: NotifierSettings
    channel: NotifierChannel

    @property
    def name(self) -> str:
        return self.settings.name


class NotifierService:
    """The notifiers of this node, and the queue from which they take their messages."""

    def __init__(
        self,
        notifiers: Sequence[ApprovalNotifier],
        queue: NoticeQueue,
        approvals: ApprovalService,
        directory: ApproverDirectory,
        audit_log: AuditLog | None = None,
        clicks: OnceKeys | None = None,
    ) -> None:
        """`clicks` are the keys of clicks in messages, which are deleted after some time."""
        self.notifiers: Mapping[str, ApprovalNotifier] = {each.name: each for each in notifiers}
        self.metrics = NoticeMetrics()
        self._queue = queue
        self._approvals = approvals
        self._directory = directory
        self._audit_log = audit_log
        self._clicks = clicks
        self._last_errors: dict[str, str] = {}
        self._busy: Counter[str] = Counter()
        # When each notifier last began or ended a message.
        self._active_at: dict[str, datetime] = {}
        most = MAX_DISPATCHES + MAX_ACTIVE_PER_NOTIFIER * len(notifiers)
        self.runner = WorkQueueRunner(
            "approval notices",
            queue,
            self._handle,
            RunnerSettings(most, looks_after_each=True),
            clock=approvals.clock,
            prune=self._prune,
        )

    def on_request_changed(self, request: ApprovalRequest) -> None:
        """Look for the notices of a change at this node at once."""
        self.runner.wakeup.set()

    def metric_families(self) -> list[MetricFamily]:
        return self.metrics.families()

    def last_error(self, name: str) -> str:
        """Return the error of the latest message of this node, or nothing if it was sent."""
        return self._last_errors.get(name, "")

    def get(self, name: str) -> ApprovalNotifier:
        """Return a notifier. Raises MalformedMessage."""
        found = self.notifiers.get(name)
        if found is None:
            raise MalformedMessage("there is no notifier of this name", NOTHING_HERE)
        return found

    async def has_announced(self, name: str, request: str) -> bool:
        """Return whether a notifier has a message of its own about a request."""
        # Anybody can put anything into a click. No id of a request has other characters.
        if not request.isalnum():
            return False
        return bool(await self._queue.page(limit=1, group=_group(name, request)))

    async def send_test(self, name: str, person: str) -> None:
        """Send a test message now. Raises MalformedMessage with the reason if it fails."""
        notifier = self.get(name)
        is_personal = notifier.channel.is_personal
        if is_personal and not notifier.channel.can_reach(person):
            raise MalformedMessage(
                f"{name} has no address of {person:.200}; name another person", INVALID_PARAMS
            )
        notice = ApprovalNotice(
            NoticePhase.TEST, self._approvals.clock(), recipient=person if is_personal else ""
        )
        try:
            async with asyncio.timeout(SEND_TIMEOUT_SECONDS):
                sent = await notifier.channel.send(notice)
        except (Unavailable, Misconfigured, TimeoutError) as problem:
            raise MalformedMessage(
                f"the test message failed: {_describe(problem)}", INVALID_PARAMS
            ) from None
        if is_personal and not sent:
            raise MalformedMessage(
                f"{person:.200} has no browser that takes messages", INVALID_PARAMS
            )

    def close(self) -> None:
        for each in self.notifiers.values():
            each.channel.close()

    async def _prune(self, now: datetime) -> None:
        await self._queue.prune(now - REMEMBERED)
        if self._clicks is not None:
            await self._clicks.forget(now - CLICKS_REMEMBERED)

    # Jobs.

    async def _handle(self, job: QueuedJob) -> None:
        order = _order.decode(job.payload)
        request = await self._approvals.store.get(order.request) if order.request else None
        match order.task:
            case NoticeTask.DISPATCH:
                await self._dispatch(job, request)
            case NoticeTask.ESCALATE:
                await self._escalate(job, order, request)
            case NoticeTask.SEND:
                await self._send(job, order, () if request is None else (request,))
            case NoticeTask.DIGEST:
                await self._send(job, order, await self._digest_requests(job.key, order))

    async def _dispatch(self, job: QueuedJob, request: ApprovalRequest | None) -> None:
        """Add the messages about a change of a request."""
        is_ready = True
        if request is not None:
            is_first = job.key.endswith(f"/{_FIRST_LABEL}")
            for notifier in self.notifiers.values():
                if not is_first:
                    is_ready &= await self._follow(notifier, request)
                elif matches(notifier.settings, request):
                    await self._announce(notifier, request)
        if is_ready:
            await self._end(job, "")
        else:
            await self._postpone(job)

    async def _announce(self, notifier: ApprovalNotifier, request: ApprovalRequest) -> None:
        """Add the first messages about a request, and its escalation."""
        if not request.is_open and not notifier.channel.hears_every_change:
            return
        plan = plan_delivery(notifier.settings, request, self._approvals.clock())
        for person in await self._recipients(notifier, request, notifier.settings.to):
            if plan.is_digest:
                await self._add_to_digest(notifier, request, person, plan)
            else:
                await self._add_message(
                    notifier, request, NoticePhase.REQUESTED, person, due_at=plan.due_at
                )
        await self._add_escalation(notifier, request, request.created_at)

    async def _follow(self, notifier: ApprovalNotifier, request: ApprovalRequest) -> bool:
        """Add the messages about a change. Returns False while the first one is being sent."""
        channel, label = notifier.channel, change_label(request)
        if not channel.wants_change(request):
            return True
        if channel.hears_every_change:
            if matches(notifier.settings, request):
                await self._add_message(notifier, request, NoticePhase.CHANGED, label=label)
            return True
        jobs = await self._queue.page(
            limit=MAX_JOBS_OF_REQUEST, group=_group(notifier.name, request.id)
        )
        if any(each.state is JobState.WAITING and each.holder for each in jobs):
            return False
        orders = [(_order.decode(each.payload), each) for each in jobs]
        sent = {
            (order.recipient, each.result.removeprefix(SENT))
            for order, each in orders
            if order.phase in _FIRST_PHASES and each.result.startswith(SENT)
        }
        for person, reference in sent:
            mark = hashlib.sha256(reference.encode()).hexdigest()[:12]
            await self._add_message(
                notifier,
                request,
                NoticePhase.CHANGED,
                person,
                label=f"{label}/{mark}",
                reference=reference,
            )
        return True

    async def _escalate(
        self, job: QueuedJob, order: NoticeOrder, request: ApprovalRequest | None
    ) -> None:
        """Tell others about a request that was not decided in time."""
        notifier, now = self.notifiers.get(order.notifier), self._approvals.clock()
        if notifier is None or request is None or not _is_answerable(request, now):
            await self._end(job, SKIPPED)
            return
        target = notifier.settings.escalate_to
        is_subject = target.startswith((GROUP_PREFIX, PERSON_PREFIX))
        other = notifier if is_subject else self.notifiers.get(target)
        if other is None:
            await self._end(job, SKIPPED)
            return
        wanted = (target,) if is_subject else other.settings.to
        for person in await self._recipients(other, request, wanted):
            await self._add_message(other, request, NoticePhase.ESCALATED, person)
        if other is not notifier:
            await self._add_escalation(other, request, now)
        if await self._end(job, ""):
            self.metrics.escalated[notifier.name] += 1
            self._record(AuditType.NOTICE_ESCALATED, notifier, request, {"to": target})

    # Messages.

    async def _send(
        self, job: QueuedJob, order: NoticeOrder, requests: Sequence[ApprovalRequest]
    ) -> None:
        notifier = self.notifiers.get(order.notifier)
        if notifier is None:
            await self._end(job, SKIPPED)
            return
        if self._busy[notifier.name] >= MAX_ACTIVE_PER_NOTIFIER:
            await self._postpone(job, self._busy_delay(notifier.name))
            return
        notice = await self._notice(notifier, order, requests)
        if notice is None:
            await self._end(job, SKIPPED)
            return
        self._count_active(notifier.name, 1)
        try:
            async with asyncio.timeout(SEND_TIMEOUT_SECONDS):
                reference = await notifier.channel.send(notice, order.reference)
        except (Unavailable, Misconfigured, TimeoutError) as problem:
            await self._fail(job, order, notifier, notice, problem)
            return
        except Exception as problem:
            log.exception("Notifier %s failed because of an internal error", notifier.name)
            await self._fail(job, order, notifier, notice, problem)
            return
        finally:
            self._count_active(notifier.name, -1)
        self._last_errors.pop(notifier.name, None)
        is_reached = bool(reference) or not notifier.channel.is_personal
        if await self._end(job, f"{SENT}{reference}" if is_reached else SKIPPED) and is_reached:
            self.metrics.sent[notifier.name] += 1
            self._record_message(AuditType.NOTICE_SENT, notifier, notice)

    async def _notice(
        self, notifier: ApprovalNotifier, order: NoticeOrder, requests: Sequence[ApprovalRequest]
    ) -> ApprovalNotice | None:
        """Return the message as it has to be now, or None if it is no longer needed."""
        now, channel = self._approvals.clock(), notifier.channel
        needed = requests
        if order.phase is not NoticePhase.CHANGED and not channel.hears_every_change:
            needed = [each for each in requests if _is_answerable(each, now)]
        if channel.is_personal:
            # A person who lost the permission meanwhile learns nothing more.
            needed = [
                each
                for each in needed
                if not each.is_open or self._directory.may_answer(each, order.recipient)
            ]
        if not needed:
            return None
        approvers: Sequence[str] = ()
        if channel.hears_every_change and order.phase in _FIRST_PHASES:
            approvers = await self._recipients_named(needed[0], notifier.settings.to)
        return ApprovalNotice(order.phase, now, tuple(needed), order.recipient, tuple(approvers))

    async def _fail(
        self,
        job: QueuedJob,
        order: NoticeOrder,
        notifier: ApprovalNotifier,
        notice: ApprovalNotice,
        problem: Exception,
    ) -> None:
        """Try a message again later, or give it up."""
        failures, reason = order.failures + 1, _describe(problem)
        self._last_errors[notifier.name] = reason
        is_lasting = isinstance(problem, Misconfigured)
        now = self._approvals.clock()
        if not is_lasting and not RETRY_SCHEDULE.is_exhausted(failures):
            due_at = now + draw_delay(RETRY_SCHEDULE, failures)
            payload = msgspec.json.encode(replace(order, failures=failures))
            again = JobOutcome(JobState.WAITING, due_at, reason, payload=payload)
            await self._queue.settle(job, again)
            return
        if await self._queue.settle(job, JobOutcome(JobState.FAILED, now, reason)):
            self.metrics.failed[notifier.name] += 1
            log.warning("Notifier %s gave up a message: %s", notifier.name, reason)
            self._record_message(
                AuditType.NOTICE_FAILED, notifier, notice, AuditResult.FAILURE, reason
            )

    async def _digest_requests(self, group: str, order: NoticeOrder) -> Sequence[ApprovalRequest]:
        jobs = await self._queue.page(limit=MAX_JOBS_OF_REQUEST, group=group)
        ids = sorted(_order.decode(each.payload).request for each in jobs)
        found = [await self._approvals.store.get(each) for each in ids]
        return [each for each in found if each is not None]

    # Adding jobs.

    async def _recipients(
        self, notifier: ApprovalNotifier, request: ApprovalRequest, subjects: Sequence[str]
    ) -> Sequence[str]:
        """Return the people who each get a message; one empty name for a channel."""
        if not notifier.channel.is_personal:
            return ("",)
        people = await self._recipients_named(request, subjects)
        return [each for each in people if notifier.channel.can_reach(each)]

    async def _recipients_named(
        self, request: ApprovalRequest, subjects: Sequence[str]
    ) -> Sequence[str]:
        if subjects:
            return self._directory.allowed_in(request, subjects)
        return await self._directory.approvers_of(request)

    async def _add_message(
        self,
        notifier: ApprovalNotifier,
        request: ApprovalRequest,
        phase: NoticePhase,
        person: str = "",
        *,
        due_at: datetime | None = None,
        label: str = "",
        reference: str = "",
    ) -> None:
        order = NoticeOrder(
            NoticeTask.SEND, request.id, notifier.name, phase, person, reference=reference
        )
        key = f"send/{notifier.name}/{request.id}/{label or phase}/{person}"
        await self._add(key, order, due_at, _group(notifier.name, request.id))

    async def _add_escalation(
        self, notifier: ApprovalNotifier, request: ApprovalRequest, since: datetime
    ) -> None:
        after = notifier.settings.escalate_after
        if after is None:
            return
        order = NoticeOrder(NoticeTask.ESCALATE, request.id, notifier.name)
        await self._add(f"escalate/{notifier.name}/{request.id}", order, since + after)

    async def _add_to_digest(
        self,
        notifier: ApprovalNotifier,
        request: ApprovalRequest,
        person: str,
        plan: DeliveryPlan,
    ) -> None:
        """Add a request to the digest of that time, or send it alone if that is being sent."""
        now = self._approvals.clock()
        digest = f"digest/{notifier.name}/{int(plan.due_at.timestamp())}/{person}"
        item = NoticeOrder(NoticeTask.SEND, request.id, notifier.name, recipient=person)
        known = await self._queue.enqueue(
            QueuedJob(
                f"item/{notifier.name}/{request.id}/{person}",
                now,
                now,
                group=digest,
                payload=msgspec.json.encode(item),
                state=JobState.DONE,
                ended_at=now,
            )
        )
        assert known is not None
        order = NoticeOrder(
            NoticeTask.DIGEST, "", notifier.name, NoticePhase.DIGEST, recipient=person
        )
        added = await self._add(known.job.group, order, plan.due_at)
        # The digest reads its items after a node has claimed it. Before, it has no holder.
        is_in_time = added.state is JobState.WAITING and not added.holder
        if known.is_new and not is_in_time:
            await self._add_message(notifier, request, NoticePhase.REQUESTED, person)

    async def _add(
        self, key: str, order: NoticeOrder, due_at: datetime | None = None, group: str = ""
    ) -> QueuedJob:
        now = self._approvals.clock()
        payload = msgspec.json.encode(order)
        added = await self._queue.enqueue(QueuedJob(key, due_at or now, now, group, payload))
        assert added is not None
        if added.is_new and added.job.due_at <= now:
            self.runner.wakeup.set()
        return added.job

    # Ends of jobs.

    async def _end(self, job: QueuedJob, result: str) -> bool:
        ended = JobOutcome(JobState.DONE, self._approvals.clock(), result=result)
        return await self._queue.settle(job, ended)

    def _count_active(self, notifier: str, change: int) -> None:
        self._busy[notifier] += change
        self._active_at[notifier] = self._approvals.clock()

    def _busy_delay(self, notifier: str) -> timedelta:
        """Return how long a message waits: as long as the notifier has made no progress.

        So the delay doubles while a notifier is slow, and is short again as soon as it goes on.
        Each attempt claims the job and writes it again.
        """
        idle = self._approvals.clock() - self._active_at[notifier]
        return min(MAX_BUSY_DELAY, max(BUSY_DELAY, idle))

    async def _postpone(self, job: QueuedJob, delay: timedelta = BUSY_DELAY) -> None:
        later = self._approvals.clock() + delay
        await self._queue.settle(job, JobOutcome(JobState.WAITING, later))

    def _record_message(
        self,
        type: AuditType,
        notifier: ApprovalNotifier,
        notice: ApprovalNotice,
        result: AuditResult = AuditResult.SUCCESS,
        reason: str = "",
    ) -> None:
        said = {"phase": notice.phase}
        said |= {"recipient": notice.recipient} if notice.recipient else {}
        said |= {"reason": reason} if reason else {}
        for request in notice.requests:
            self._record(type, notifier, request, said, result)

    def _record(
        self,
        type: AuditType,
        notifier: ApprovalNotifier,
        request: ApprovalRequest,
        details: Mapping[str, object],
        result: AuditResult = AuditResult.SUCCESS,
    ) -> None:
        if self._audit_log is None:
            return
        self._audit_log.record(
            type,
            GATEWAY,
            server=request.server,
            tool=request.tool,
            result=result,
            trace=request.trace,
            details={
                "approval": request.id,
                "notifier": notifier.name,
                "kind": notifier.settings.kind,
                **details,
            },
        )


_FIRST_LABEL: Final = "pending.0"


def _is_answerable(request: ApprovalRequest, now: datetime) -> bool:
    return request.is_open and request.expires_at > now


def _group(notifier: str, request: str) -> str:
    return f"{notifier}/{request}"


def _describe(problem: Exception) -> str:
    """Return the reason of a failure without anything that the receiver or a bug may add."""
    if isinstance(problem, TimeoutError):
        return "it took too long"
    known = isinstance(problem, (Unavailable, Misconfigured))
    return str(problem)[:300] if known else type(problem).__name__
