"""Runs the context hooks around inference that servers request. (MCPL §10, §11.1)"""

import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Self

from comity.errors import EXHAUSTED, SERVER_NOT_READY, MalformedMessage, Unavailable
from comity.inference.messages import ModelInfo, text_of, to_text_content
from comity.inference.model import (
    ConversationStep,
    InferenceEngine,
    InferenceRequest,
    ModelCompletion,
    ModelPrompt,
    OnPiece,
    ReplyChunk,
)
from comity.live.hooks.model import HookContext, InjectedContext, place_injections
from comity.live.hooks.service import (
    ActiveHooks,
    AfterInferenceHooks,
    BeforeInferenceHooks,
    Guards,
    TurnDepth,
)
from comity.live.host import LiveHost
from comity.live.settings import TurnSettings
from comity.policy.risk import SERVER_SUBJECT_PREFIX

WITHHELD_REPLY: Final = "the reply is withheld: what had to look at it first did not"


@dataclass(frozen=True, slots=True)
class InferenceHooks:
    """The hooks of all servers, and what is known about those that are pending."""

    before: BeforeInferenceHooks
    after: AfterInferenceHooks
    active: ActiveHooks
    turn_depth: TurnDepth

    @classmethod
    def build(cls, live_host: LiveHost, settings: TurnSettings, guards: Guards) -> Self:
        active = ActiveHooks()
        return cls(
            BeforeInferenceHooks(live_host, active, settings),
            AfterInferenceHooks(live_host, active, settings, guards),
            active,
            TurnDepth(),
        )


class HookedInference:
    """An inference engine that runs the context hooks around each request of a server."""

    def __init__(
        self,
        engine: InferenceEngine,
        hooks: InferenceHooks,
        hide: Callable[[str], str],
        max_chain: int,
    ) -> None:
        self._engine = engine
        self._hooks = hooks
        self._hide = hide
        self._max_chain = max_chain

    def info(self, server: str = "", feature: str = "", conversation: str = "") -> ModelInfo:
        return self._engine.info(server, feature, conversation)

    async def infer(
        self, request: InferenceRequest, on_chunk: OnPiece | None = None
    ) -> ModelCompletion:
        """Ask a model and return the reply that the hooks leave.

        Raises Unavailable, also if a reviewer withholds the reply, and MalformedMessage if too many
        inferences have caused each other.
        """
        before, after, server = self._hooks.before, self._hooks.after, request.server
        depth = self._hooks.turn_depth.depth_of(server)
        if depth >= self._max_chain:
            raise MalformedMessage("too many inferences have brought about each other", EXHAUSTED)
        context = self._context_of(request)
        awaiting = self._hooks.turn_depth.awaiting
        with awaiting((each.server for each in before.servers_to_ask(server)), depth):
            given = await before.gather(context, server)
        placed = place_injections(given, secrets.token_hex(8))
        prompt = _with_injections(request.prompt, placed)
        # Words that a server may still change are not streamed.
        is_reviewed = after.may_change_output()
        stream = None if is_reviewed else on_chunk
        reply = await self._engine.infer(replace(request, prompt=prompt), stream)
        said = text_of(reply.content)
        with awaiting((each.server for each in after.rewriters()), depth):
            reviewed = await after.review(context, said, reply.usage)
        if reviewed.withheld_by:
            raise Unavailable(WITHHELD_REPLY, SERVER_NOT_READY)
        if is_reviewed and on_chunk is not None and reviewed.text:
            on_chunk(ReplyChunk(reviewed.text))
        after.notify_observers(context, self._hide(reviewed.text), reply.usage, recipient=server)
        if reviewed.text == said:
            return reply
        # The reasoning was not reviewed, so it may hold what a server took out.
        return replace(reply, content=to_text_content(reviewed.text), thinking="")

    def _context_of(self, request: InferenceRequest) -> HookContext:
        last = request.prompt.steps[-1]
        # A server chooses the name of the conversation. Without its own name before it, it could
        # ask with the name of another conversation for the context that belongs there.
        owner = SERVER_SUBJECT_PREFIX + request.server
        return HookContext(
            request.inference,
            f"{owner}/{request.conversation or request.inference}",
            sum(step.role == "user" for step in request.prompt.steps[:-1]),
            text_of(last.content) if last.role == "user" else None,
            self._engine.info(request.server, request.feature, request.conversation),
        )


def _with_injections(prompt: ModelPrompt, placed: InjectedContext) -> ModelPrompt:
    """Return the prompt with the injected context around the user's last message."""
    steps = list(prompt.steps)
    users = [number for number, step in enumerate(steps) if step.role == "user"]
    if users:
        step = steps[users[-1]]
        content = (*placed.before, *step.content, *placed.after)
        steps[users[-1]] = replace(step, content=content)
    elif placed.before or placed.after:
        steps.insert(0, ConversationStep("user", (*placed.before, *placed.after)))
    return replace(prompt, steps=tuple(steps), system=(*prompt.system, *placed.system))
