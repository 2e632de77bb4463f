"""Requests of a live server to its host's model. (MCPL §11)"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, cast

from comity.errors import INVALID_REQUEST, MalformedMessage, Misconfigured
from comity.inference import messages as inference
from comity.inference.messages import ChatMessage
from comity.mcp import jsonrpc
from comity.sdk.live_hosts import HostRefusal, HostRequestFailure, McplHost, new_id
from comity.sdk.live_types import Reply, Saying, blocks_of, reply_in
from comity.toolkit.background import draw_delay
from comity.toolkit.resilience import RetrySchedule

type OnPiece = Callable[[str], Awaitable[None] | None]
type Messages = str | Sequence[str | ChatMessage | Mapping[str, Any]]

LONGEST: Final = timedelta(minutes=5)
HOOK_SECONDS: Final = 15.0
"""How long a hook of the same host is waited for: it waits ten seconds itself at the most."""

_BETWEEN_TRIES: Final = RetrySchedule(timedelta(milliseconds=5), timedelta(milliseconds=250))
MOST_PIECES: Final = 100_000


@dataclass(slots=True)
class FeatureHookRun:
    """A hook that runs, known to all that it starts."""

    over: asyncio.Event


HOOK: ContextVar[FeatureHookRun | None] = ContextVar("comity_live_hook", default=None)


def refuse_in_hook() -> None:
    """Raises Misconfigured from within a hook that is not over."""
    hook = HOOK.get()
    if hook is not None and not hook.over.is_set():
        raise Misconfigured("no model is asked from within a hook: use `server.afterwards(...)`")


class InferenceChunkBuffer:
    """The words of one answer, in their order, each once."""

    def __init__(self, on_piece: OnPiece) -> None:
        self._on_chunk = on_piece
        self._waiting: dict[int, str] = {}
        self._said: list[str] = []
        self._is_busy = False
        self._is_over = False

    async def take(self, index: object, delta: object) -> None:
        is_next = isinstance(index, int) and len(self._said) <= index < MOST_PIECES
        if self._is_over or not is_next or not isinstance(delta, str):
            return
        self._waiting[cast("int", index)] = delta
        if self._is_busy:
            return
        self._is_busy = True
        try:
            while (following := self._waiting.pop(len(self._said), None)) is not None:
                await self._say(following)
        finally:
            self._is_busy = False

    async def finish(self, whole: str) -> None:
        """The rest at once, where pieces were late or lost."""
        self._is_over = True
        said = "".join(self._said)
        if whole.startswith(said) and len(whole) > len(said):
            await self._say(whole[len(said) :])

    async def _say(self, delta: str) -> None:
        self._said.append(delta)
        waiting = self._on_chunk(delta)
        if inspect.isawaitable(waiting):
            await waiting


@dataclass(frozen=True, slots=True)
class HostInferenceRequest:
    """One request for inference, as its author words it."""

    feature: str
    messages: Messages
    conversation: str = ""
    max_tokens: int | None = None
    temperature: float | None = None

    def params(self, *, stream: bool) -> dict[str, Any]:
        """Return the wire form. Raises Misconfigured if it is invalid."""
        liked: dict[str, Any] = {}
        if self.max_tokens is not None:
            liked["maxTokens"] = self.max_tokens
        if self.temperature is not None:
            liked["temperature"] = self.temperature
        told: dict[str, Any] = {"featureSet": self.feature, "messages": _worded(self.messages)}
        if self.conversation:
            told["conversationId"] = self.conversation
        if stream:
            told["stream"] = True
        if liked:
            told["preferences"] = liked
        try:
            inference.inference_params_in(jsonrpc.to_raw(told))
        except MalformedMessage as problem:
            raise Misconfigured(f"this cannot be asked of a model: {problem}") from None
        return told


class HostInferenceClient:
    """The requests that are under way, by their ids."""

    def __init__(self) -> None:
        self._pieces: dict[object, InferenceChunkBuffer] = {}

    async def ask(
        self,
        host: McplHost,
        question: HostInferenceRequest,
        on_piece: OnPiece | None,
        within: timedelta,
    ) -> Reply:
        """Raises HostRequestFailure, HostRefusal."""
        id = new_id()
        pieces = None if on_piece is None else InferenceChunkBuffer(on_piece)
        params = question.params(stream=pieces is not None and host.offered.streams)
        if pieces is not None:
            self._pieces[id] = pieces
        try:
            async with asyncio.timeout(within.total_seconds()):
                reply = reply_in(await self._outside_hooks(host, params, id))
            if pieces is not None:
                await pieces.finish(reply.text)
            return reply
        except TimeoutError:
            raise HostRequestFailure("no model answered in time") from None
        finally:
            self._pieces.pop(id, None)

    async def chunk(self, params: Mapping[str, Any]) -> None:
        """A piece, as its host tells it; of what is over nothing is heard any more. (§11.4)"""
        named = params.get("requestId")
        pieces = self._pieces.get(named) if isinstance(named, str | int) else None
        if pieces is not None:
            await pieces.take(params.get("index"), params.get("delta"))

    async def _outside_hooks(
        self, host: McplHost, params: Mapping[str, Any], id: str
    ) -> Mapping[str, Any]:
        """Ask while no hook of this server runs: the host refuses requests amid one. (D-69)"""
        refusals = 0
        while True:
            try:
                async with asyncio.timeout(HOOK_SECONDS):
                    await host.quiet.wait()
            except TimeoutError:
                raise HostRequestFailure("a hook of this server did not end") from None
            try:
                return await host.ask(inference.REQUEST, params, LONGEST.total_seconds(), id)
            except HostRefusal as refused:
                if not _is_loop(refused):
                    raise
            # A hook was on its way here when the request left. Where several servers ask models
            # at once, each request brings hooks to all others, so many tries may meet one. The
            # caller's own limit ends them.
            refusals += 1
            await asyncio.sleep(draw_delay(_BETWEEN_TRIES, refusals).total_seconds())


def _is_loop(refused: HostRefusal) -> bool:
    return refused.code == INVALID_REQUEST.code and "hook_loop" in f"{refused} {refused.data}"


def _worded(messages: Messages) -> list[dict[str, Any]]:
    every = [messages] if isinstance(messages, str) else messages
    return [_message(each) for each in every]


def _message(said: str | ChatMessage | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(said, str):
        return {"role": "user", "content": said}
    if isinstance(said, ChatMessage):
        return {"role": said.role, "content": blocks_of(said.content)}
    content = cast("Saying", said.get("content", ""))
    worded = content if isinstance(content, str) else blocks_of(content)
    return {"role": said.get("role", "user"), "content": worded}
