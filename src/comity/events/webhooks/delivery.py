"""Delivery of webhook messages, with retries."""

import logging
import secrets
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final

from comity.audit.events import AuditType
from comity.errors import Unavailable
from comity.events.webhooks import model as rules
from comity.events.webhooks.model import (
    AttemptHistory,
    DeliveryProblem,
    DeliveryResult,
    DeliveryVerdict,
    HttpReply,
    NextAttempt,
    WebhookMessage,
    WebhookSender,
    WebhookState,
    WebhookSubscription,
    WebhookTarget,
)
from comity.events.webhooks.service import WebhookRegistry, secrets_of
from comity.mcp.actors import GATEWAY, Actor, PrincipalKind
from comity.secrets.model import Sealer
from comity.toolkit.jobs import QueuedJob
from comity.toolkit.work_queue import RunnerSettings, WorkQueueRunner

log = logging.getLogger(__name__)

MAX_BATCH: Final = 50
"""How many messages one claim covers."""

POLL_INTERVAL: Final = timedelta(seconds=1)
CROWDED_DELAY: Final = timedelta(milliseconds=200)
REMEMBERED: Final = timedelta(minutes=10)
PRUNE_INTERVAL: Final = timedelta(minutes=1)
_OURSELVES: Final = Actor(GATEWAY, PrincipalKind.SYSTEM)


@dataclass(slots=True)
class _DeliveryBatch:
    """The result of one claim so far."""

    subscription: WebhookSubscription
    delivered: list[int] = field(default_factory=list[int])
    tried: list[WebhookMessage] = field(default_factory=list[WebhookMessage])
    rest_until: datetime | None = None


class WebhookDelivery:
    """Delivers stored messages of all nodes from this node."""

    def __init__(
        self,
        webhooks: WebhookRegistry,
        sender: WebhookSender,
        sealer: Sealer,
        chance: Callable[[], float] = lambda: secrets.randbelow(1000) / 1000,
    ) -> None:
        options = webhooks.options
        self._webhooks = webhooks
        self._sender = sender
        self._sealer = sealer
        self._chance = chance
        self._busy: Counter[str] = Counter()
        self._lease = 4 * options.timeout
        self.runner = WorkQueueRunner(
            "webhooks",
            webhooks.store.jobs,
            self._handle,
            RunnerSettings(
                options.max_concurrent,
                lease=self._lease,
                poll_interval=min(POLL_INTERVAL, options.schedule.first),
                prune_interval=PRUNE_INTERVAL,
                # More messages may have arrived for the same subscription meanwhile.
                looks_after_each=True,
            ),
            clock=webhooks.clock,
            prune=self._prune,
        )

    async def _prune(self, now: datetime) -> None:
        for ended in await self._webhooks.store.prune(now, now - REMEMBERED):
            await self._webhooks.reread(ended.id)

    async def _handle(self, job: QueuedJob) -> None:
        """Deliver the due messages of one subscription."""
        one = await self._webhooks.store.get(job.key)
        if one is None:
            # The subscription and its job were removed meanwhile.
            return
        where = self._webhooks.target_of(one)
        names = (f"place {'' if where is None else where.origin}", f"party {one.party}")
        if self._is_party_at_limit(*names):
            await self._webhooks.store.postpone(job, self._webhooks.clock() + CROWDED_DELAY)
            return
        self._busy.update(names)
        try:
            await self._deliver(job, one, where)
        finally:
            self._busy.subtract(names)
            self._busy += Counter[str]()

    def _is_party_at_limit(self, place: str, party: str) -> bool:
        options = self._webhooks.options
        of_party = max(options.max_concurrent // 2, 1)
        return self._busy[place] >= options.max_concurrent_per_host or self._busy[party] >= of_party

    async def _deliver(
        self, job: QueuedJob, subscription: WebhookSubscription, target: WebhookTarget | None
    ) -> None:
        batch = await self._deliver_due(subscription, target)
        settlement = DeliveryResult(
            subscription=batch.subscription,
            at=self._webhooks.clock(),
            delivered=tuple(batch.delivered),
            tried=tuple(batch.tried),
            rest_until=batch.rest_until,
        )
        if await self._webhooks.store.settle(job, settlement):
            await self._record_state_change(subscription, batch.subscription)

    async def _deliver_due(
        self, subscription: WebhookSubscription, target: WebhookTarget | None
    ) -> _DeliveryBatch:
        """Deliver the due messages in order, up to the first failure or half of the lease."""
        batch, begun = _DeliveryBatch(subscription), self._webhooks.clock()
        for post in await self._webhooks.store.due(subscription.id, begun, MAX_BATCH):
            if self._webhooks.clock() - begun > self._lease / 2:
                break
            answered = await self._post(subscription, target, post)
            now = self._webhooks.clock()
            verdict = _verdict(answered)
            if verdict is DeliveryVerdict.DELIVERED:
                batch.delivered.append(post.number)
                well = replace(batch.subscription, failures=0, failing_since=None, last_error="")
                batch.subscription = replace(well, delivered_at=now)
                continue
            self._record_failure(batch, post, answered, now)
            if verdict is not DeliveryVerdict.NEVER:
                break
        return batch

    async def _post(
        self,
        subscription: WebhookSubscription,
        target: WebhookTarget | None,
        message: WebhookMessage,
    ) -> HttpReply | DeliveryProblem:
        now = self._webhooks.clock()
        if target is None or self._webhooks.actor_of(subscription) is None:
            return DeliveryProblem.FORBIDDEN
        try:
            keys = await secrets_of(subscription, self._sealer, now)
        except Unavailable:
            return DeliveryProblem.KEY_SERVICE
        if not keys:
            return DeliveryProblem.SECRET
        heading = rules.build_signature_headers(
            keys, subscription.id, message.event, now, message.body
        )
        return await self._sender.post(target, heading, message.body)

    def _record_failure(
        self,
        batch: _DeliveryBatch,
        message: WebhookMessage,
        result: HttpReply | DeliveryProblem,
        now: datetime,
    ) -> None:
        verdict, one = _verdict(result), batch.subscription
        problem = result if isinstance(result, DeliveryProblem) else rules.problem_of(result.status)
        if verdict is DeliveryVerdict.NEVER:
            lost = replace(message, attempts=message.attempts + 1, failed=True, last_error=problem)
            batch.tried.append(lost)
            batch.subscription = replace(one, last_error=problem)
            return
        since = one.failing_since or now
        one = replace(one, failures=one.failures + 1, failing_since=since, last_error=problem)
        disable_after = self._webhooks.options.disable_after
        is_over = rules.is_given_up(disable_after, one.failing_since, now)
        if is_over or verdict is DeliveryVerdict.GONE:
            one = replace(one, state=WebhookState.DISABLED)
        after = self._after(message, one, result, now)
        again = replace(
            message,
            attempts=message.attempts + 1,
            due_at=after.due_at or now,
            failed=after.due_at is None,
            last_error=problem,
        )
        batch.tried.append(again)
        batch.subscription, batch.rest_until = one, after.rest_until

    def _after(
        self,
        message: WebhookMessage,
        subscription: WebhookSubscription,
        result: HttpReply | DeliveryProblem,
        now: datetime,
    ) -> NextAttempt:
        asked = result.again_in if isinstance(result, HttpReply) else timedelta(0)
        tried = AttemptHistory(message.attempts + 1, subscription.failures, message.at)
        schedule = self._webhooks.options.schedule
        return rules.after_failure(schedule, tried, now, self._chance(), asked)

    async def _record_state_change(
        self, before: WebhookSubscription, subscription: WebhookSubscription
    ) -> None:
        if subscription.state is WebhookState.ACTIVE or before.state is subscription.state:
            return
        await self._webhooks.reread(subscription.id)
        self._webhooks.record(
            AuditType.WEBHOOK_DISABLED, _OURSELVES, subscription, reason=subscription.last_error
        )
        log.warning("Webhook %s is disabled: %s", subscription.id, subscription.last_error)


def _verdict(result: HttpReply | DeliveryProblem) -> DeliveryVerdict:
    return (
        DeliveryVerdict.AGAIN
        if isinstance(result, DeliveryProblem)
        else rules.delivery_verdict(result.status)
    )
