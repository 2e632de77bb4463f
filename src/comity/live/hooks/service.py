"""Runs the context hooks of servers before and after inference."""

import asyncio
import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from msgspec import Raw

from comity.audit.events import AuditResult, AuditType
from comity.errors import UPSTREAM_FAILED, UPSTREAM_SLOW, MalformedMessage, Unavailable
from comity.inference.messages import TokenUsage
from comity.live.audit import OK, LiveAuditEntry, record_entry
from comity.live.hooks import model
from comity.live.hooks.model import HookContext, InjectionRequest
from comity.live.host import LiveHost, LiveServer
from comity.live.settings import TurnSettings
from comity.mcp.mcpl import FeatureUse
from comity.toolkit.background import BackgroundTasks


class ActiveHooks:
    """Tracks the hooks whose answer is pending."""

    def __init__(self) -> None:
        self._pending: Counter[tuple[str, str]] = Counter()

    @contextmanager
    def pending(self, server: str, conversation: str) -> Generator[None]:
        """Mark a server's hook on this conversation as pending inside the context."""
        key = (server, conversation)
        self._pending[key] += 1
        try:
            yield
        finally:
            self._pending[key] -= 1
            if not self._pending[key]:
                del self._pending[key]

    def is_pending(self, server: str, conversation: str = "") -> bool:
        """Whether a hook on this conversation is pending, or any hook if none is given."""
        if conversation:
            return (server, conversation) in self._pending
        return any(asked == server for asked, _ in self._pending)


class TurnDepth:
    """Tracks the depth of turns that wait for servers, so that chains of turns stay finite."""

    def __init__(self) -> None:
        self._waits: Counter[tuple[str, int]] = Counter()

    @contextmanager
    def awaiting(self, servers: Iterable[str], depth: int) -> Generator[None]:
        """Mark that a turn of this depth waits for these servers inside the context."""
        now = Counter((server, depth) for server in servers)
        self._waits += now
        try:
            yield
        finally:
            self._waits -= now

    def depth_of(self, server: str) -> int:
        """Return the depth of a turn that this server would cause now."""
        return max((depth + 1 for asked, depth in self._waits if asked == server), default=0)


TIMEOUT: Final = "timeout"
POSITION_NOT_GRANTED: Final = "not granted there"
OVER_BUDGET: Final = "too much"


@dataclass(frozen=True, slots=True)
class HookFailure:
    """Why a server's contribution is missing.

    `outcome` is `timeout` if it did not answer in time.
    """

    outcome: str
    reason: str


def failure_of(error: MalformedMessage | Unavailable) -> HookFailure:
    """Return what the audit log records about a failed hook."""
    outcome = TIMEOUT if error.fault is UPSTREAM_SLOW else error.fault.error_type
    is_its_own = outcome == UPSTREAM_FAILED.error_type and error.fault is not UPSTREAM_FAILED
    if is_its_own and isinstance(error, MalformedMessage):
        # The server's own message may repeat the prompt, which does not belong in the audit log.
        return HookFailure(outcome, f"it answered with error {error.fault.code}")
    return HookFailure(outcome, str(error)[:500])


def check_answer_size(answer: Raw, maximum: int) -> Raw:
    """Return the answer unchanged. Raises MalformedMessage if it is larger than `maximum` bytes."""
    if len(answer) > maximum:
        raise MalformedMessage(f"an answer of {len(answer)} bytes is not read", UPSTREAM_FAILED)
    return answer


class BeforeInferenceHooks:
    """Asks servers for context to inject before inference."""

    def __init__(
        self, live_host: LiveHost, active_hooks: ActiveHooks, settings: TurnSettings
    ) -> None:
        self._live_host = live_host
        self._active_hooks = active_hooks
        self._settings = settings

    def servers_to_ask(self, prompt_author: str = "") -> list[LiveServer]:
        """Return the servers to ask, in the order in which their injections appear.

        The server that wrote the whole prompt itself is not asked what to add to it.
        """
        here = self._live_host.servers_using(FeatureUse.BEFORE)
        return [each for each in here if each.declared.before and each.server != prompt_author]

    async def gather(
        self, context: HookContext, prompt_author: str = ""
    ) -> Sequence[InjectionRequest]:
        """Ask all servers at once and return the injections that are permitted and fit."""
        answers = await asyncio.gather(
            *(self._ask_server(each, context) for each in self.servers_to_ask(prompt_author))
        )
        kept, left_out = model.fit_injections(
            [given for answer in answers for given in answer], self._settings.max_injected_tokens
        )
        for each in left_out:
            self._record_audit(
                each.server, context, HookFailure(OVER_BUDGET, each.injection.namespace)
            )
        return kept

    async def _ask_server(
        self, live_server: LiveServer, context: HookContext
    ) -> list[InjectionRequest]:
        try:
            with self._active_hooks.pending(live_server.server, context.conversation):
                answer = await live_server.request(
                    model.BEFORE, context.before_params(), self._settings.before_hook_timeout
                )
            found = model.injected_in(check_answer_size(answer, self._settings.max_hook_bytes))
            live_server.require(found.feature, FeatureUse.BEFORE)
        except (MalformedMessage, Unavailable) as error:
            self._record_audit(live_server.server, context, failure_of(error))
            return []
        kept, elsewhere = model.split_by_position(found.injections, live_server.policy.positions)
        if elsewhere:
            told = HookFailure(POSITION_NOT_GRANTED, ", ".join(sorted(set(elsewhere))))
            self._record_audit(live_server.server, context, told, found.feature)
        self._record_audit(live_server.server, context, None, found.feature, len(kept))
        return [InjectionRequest(live_server.server, each) for each in kept]

    def _record_audit(
        self,
        server: str,
        context: HookContext,
        problem: HookFailure | None,
        feature: str = "",
        injected: int = 0,
    ) -> None:
        details = {"injected": injected} if problem is None else {"reason": problem.reason}
        deed = LiveAuditEntry(
            server,
            model.BEFORE,
            feature,
            context.inference,
            OK if problem is None else problem.outcome,
            details={**details, "conversation": context.conversation},
        )
        result = AuditResult.SUCCESS if problem is None else AuditResult.FAILURE
        record_entry(self._live_host.audit, AuditType.HOOK_CALLED, deed, result)


NOTIFIED: Final = "told"
REVIEWER_MISSING: Final = HookFailure(
    "server_not_ready", "it is not connected, or did not check the reply"
)

type Guards = Callable[[], Collection[str]]
"""The servers that must review all output, connected or not."""


@dataclass(slots=True)
class ReviewedOutput:
    """The output to deliver, the servers that rewrote it, and the server that withheld it."""

    text: str
    rewrote: list[str] = field(default_factory=list[str])
    withheld_by: str = ""


def _no_guards() -> Collection[str]:
    return ()


class AfterInferenceHooks:
    """Shows the output of a model to servers that review or observe it."""

    def __init__(
        self,
        live_host: LiveHost,
        active_hooks: ActiveHooks,
        settings: TurnSettings,
        guards: Guards = _no_guards,
    ) -> None:
        self._live_host = live_host
        self._active_hooks = active_hooks
        self._settings = settings
        self._guards = guards
        self._background_tasks = BackgroundTasks("servers with reply hooks")

    def rewriters(self) -> list[LiveServer]:
        return [each for each in self._hooked_servers() if _may_rewrite(each)]

    def may_change_output(self) -> bool:
        """Whether a server may change the output, so that it must not be streamed first."""
        return bool(self.rewriters()) or bool(self._missing_guards())

    async def review(self, context: HookContext, text: str, usage: TokenUsage) -> ReviewedOutput:
        """Let each server that may rewrite the output review it, one after the other.

        A server also reviews the output that it caused itself. (D-69)
        """
        looked = ReviewedOutput(text)
        for missing in self._missing_guards():
            self._record_audit(missing, context, REVIEWER_MISSING)
            looked.withheld_by = missing
            return looked
        for hosted in self.rewriters():
            await self._review_by_server(hosted, context, looked, usage)
            if looked.withheld_by:
                return looked
        return looked

    def notify_observers(
        self, context: HookContext, text: str, usage: TokenUsage, recipient: str = ""
    ) -> None:
        """Send the output to the servers that only observe. Delivery is not guaranteed.

        A recipient that has a hook for output may ask a model about what it observed. No server
        observes the answer: two such servers would ask about each other's answers without end.
        """
        hooked = self._hooked_servers()
        if any(hosted.server == recipient for hosted in hooked):
            return
        told = context.after_params(text, usage)
        for hosted in hooked:
            if not _may_rewrite(hosted):
                self._background_tasks.start(
                    self._notify_observer(hosted, context, told), at_once=True
                )

    def stop(self) -> None:
        self._background_tasks.cancel()

    def _hooked_servers(self) -> list[LiveServer]:
        here = self._live_host.servers_using(FeatureUse.AFTER)
        return [each for each in here if each.declared.after]

    def _missing_guards(self) -> list[str]:
        """Return the guards that cannot review, because they are disconnected or not permitted."""
        return sorted(set(self._guards()) - {each.server for each in self.rewriters()})

    async def _review_by_server(
        self,
        live_server: LiveServer,
        context: HookContext,
        reviewed: ReviewedOutput,
        usage: TokenUsage,
    ) -> None:
        try:
            with self._active_hooks.pending(live_server.server, context.conversation):
                told = context.after_params(reviewed.text, usage)
                answer = await live_server.request(
                    model.AFTER, told, self._settings.after_hook_timeout
                )
            found = model.rewritten_in(check_answer_size(answer, self._settings.max_hook_bytes))
            live_server.require(found.feature, FeatureUse.AFTER)
        except (MalformedMessage, Unavailable) as error:
            self._record_audit(live_server.server, context, failure_of(error))
            if live_server.policy.fails_closed:
                reviewed.withheld_by = live_server.server
            return
        self._record_audit(live_server.server, context, None, found.feature)
        if found.response is not None and found.response != reviewed.text:
            self._record_rewrite(
                live_server.server, context, found.feature, (reviewed.text, found.response)
            )
            reviewed.text = found.response
            reviewed.rewrote.append(live_server.server)

    async def _notify_observer(
        self, live_server: LiveServer, context: HookContext, params: dict[str, object]
    ) -> None:
        # No turn waits for this server, so it may request inference about the output. (§10.7)
        await live_server.notify(model.AFTER, params)
        self._record_audit(live_server.server, context, None, outcome=NOTIFIED)

    def _record_audit(
        self,
        server: str,
        context: HookContext,
        problem: HookFailure | None,
        feature: str = "",
        outcome: str = OK,
    ) -> None:
        details = {} if problem is None else {"reason": problem.reason}
        deed = LiveAuditEntry(
            server,
            model.AFTER,
            feature,
            context.inference,
            outcome if problem is None else problem.outcome,
            details={**details, "conversation": context.conversation},
        )
        result = AuditResult.SUCCESS if problem is None else AuditResult.FAILURE
        record_entry(self._live_host.audit, AuditType.HOOK_CALLED, deed, result)

    def _record_rewrite(
        self, server: str, context: HookContext, feature: str, texts: tuple[str, str]
    ) -> None:
        before, after = (_text_digest(each) for each in texts)
        details = {"conversation": context.conversation, "before": before, "after": after}
        deed = LiveAuditEntry(server, model.AFTER, feature, context.inference, details=details)
        record_entry(self._live_host.audit, AuditType.RESPONSE_REWRITTEN, deed)


def _may_rewrite(live_server: LiveServer) -> bool:
    return live_server.declared.blocks and live_server.policy.rewrites


def _text_digest(text: str) -> dict[str, object]:
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
    return {"sha256": digest, "length": len(text)}
