"""The base of all providers: the HTTP client, its limits, and the assembly of replies."""

import functools
import logging
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, Final, cast

import httpx2

from comity.errors import (
    MODEL_REFUSED,
    RATE_LIMITED,
    UPSTREAM_DOWN,
    UPSTREAM_FAILED,
    UPSTREAM_SLOW,
    MalformedMessage,
    Unavailable,
)
from comity.inference.messages import Content, FinishReason, TokenUsage, to_text_content
from comity.inference.model import (
    ModelCompletion,
    ModelPrompt,
    ModelSpec,
    OnPiece,
    ReplyChunk,
    ToolUse,
)
from comity.mcp import jsonrpc

MOST_CHARACTERS: Final = 4_000_000
MAX_USES: Final = 128
MAX_ARGUMENTS: Final = 1_000_000
MAX_NAME_LENGTH: Final = 200
MAX_DEPTH: Final = 64
_MAX_SHOWN_ARGUMENTS: Final = 2_000
_CHARACTERS_PER_TOKEN: Final = 4.3


@dataclass(slots=True)
class _ToolUseBuffer:
    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list[str])
    size: int = 0


class ReplyAccumulator:
    """Assembles one reply from its parts. Raises Unavailable if the reply is too long."""

    def __init__(self, model: str, on_chunk: OnPiece | None = None) -> None:
        self.model = model
        self.finish = FinishReason.END
        self.input = 0
        self.output = 0
        self._on_chunk = on_chunk
        self._text: list[str] = []
        self._thinking: list[str] = []
        self._size = 0
        self._uses: dict[int, _ToolUseBuffer] = {}

    def add_text(self, text: object) -> None:
        self._add(self._text, text, is_thinking=False)

    def add_thinking(self, text: object) -> None:
        self._add(self._thinking, text, is_thinking=True)

    def use(self, index: int, id: object = "", name: object = "", arguments: object = "") -> None:
        """Add a tool call, or a part of one."""
        found = self._uses.setdefault(index, _ToolUseBuffer())
        if len(self._uses) > MAX_USES:
            raise _too_much(self.model, f"more than {MAX_USES} tools at once")
        found.id = str(id or found.id)[:MAX_NAME_LENGTH]
        found.name = str(name or found.name)[: MAX_NAME_LENGTH + 1]
        part = arguments if isinstance(arguments, str) else ""
        found.size += len(part)
        if found.size > MAX_ARGUMENTS:
            raise _too_much(self.model, "arguments that are too long")
        found.arguments.append(part)

    def count(self, read: object, written: object) -> None:
        """Record token counts. Values that are no numbers, or lower than before, are ignored."""
        self.input = max(self.input, _number(read))
        self.output = max(self.output, _number(written))

    def reply(self, prompt: ModelPrompt) -> ModelCompletion:
        text, uses = "".join(self._text), self._tool_uses()
        # Budgets need a number, so usage that a server does not report is estimated by length.
        estimated = TokenUsage(
            self.input or about_tokens(prompt), self.output or _about(self._size)
        )
        return ModelCompletion(
            to_text_content(text), self.finish, estimated, self.model, uses, "".join(self._thinking)
        )

    def _tool_uses(self) -> tuple[ToolUse, ...]:
        return tuple(
            _use(each.id or f"use_{index}", each.name, "".join(each.arguments))
            for index, each in sorted(self._uses.items())
        )

    def _add(self, parts: list[str], text: object, *, is_thinking: bool) -> None:
        if not isinstance(text, str) or not text:
            return
        self._size += len(text)
        if self._size > MOST_CHARACTERS:
            raise _too_much(self.model, "a reply that is too long")
        parts.append(text)
        if self._on_chunk is not None:
            self._on_chunk(ReplyChunk(text, is_thinking))


def about_tokens(prompt: ModelPrompt) -> int:
    """Return the approximate number of tokens of a prompt, by its length."""
    size = _length(prompt.system) + sum(
        _length(step.content)
        + sum(_length(each.content) for each in step.results)
        + sum(len(str(each.arguments)) + len(each.name) for each in step.uses)
        for step in prompt.steps
    )
    return max(1, _about(size))


def _length(content: Content) -> int:
    return sum(len(block.text) for block in content)


def _about(characters: int) -> int:
    return int(characters / _CHARACTERS_PER_TOKEN)


def _number(value: object) -> int:
    return value if type(value) is int and 0 <= value <= 10**9 else 0


def _use(id: str, name: str, text: str) -> ToolUse:
    raw = (text or "{}").encode("utf-8", "replace")
    try:
        if jsonrpc.excess_reason(raw, MAX_DEPTH):
            return ToolUse(id, name, {}, text[:_MAX_SHOWN_ARGUMENTS])
        found = jsonrpc.decode_value(raw)
    except MalformedMessage:
        found = None
    if not isinstance(found, dict) or not 0 < len(name) <= MAX_NAME_LENGTH:
        return ToolUse(id, name[:MAX_NAME_LENGTH], {}, text[:_MAX_SHOWN_ARGUMENTS] or "{}")
    return ToolUse(id, name, cast("dict[str, Any]", found))


def _too_much(model: str, what: str) -> Unavailable:
    return Unavailable(f"model {model!r} said {what}", MODEL_REFUSED)


MOST_BYTES: Final = 32 * 1024 * 1024
CONNECT_SECONDS: Final = 10.0
MAX_WAIT: Final = timedelta(hours=1)
# These libraries log requests and their addresses.
_TALKATIVE: Final = ("openai", "anthropic", "httpx2", "httpcore2")
_BUSY: Final = (408, 409, 425, 429, 529)


class _TooMuch(httpx2.HTTPError):
    """Distinguishes an oversized answer from a broken connection."""


class _BoundedByteStream(httpx2.AsyncByteStream):
    def __init__(self, inner: Any) -> None:
        self._inner = inner

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = MOST_BYTES
        async for part in self._inner:
            left -= len(part)
            if left < 0:
                raise _TooMuch("an answer that is too long")
            yield part

    async def aclose(self) -> None:
        await self._inner.aclose()


async def _limit_response(response: httpx2.Response) -> None:
    # The limit counts the bytes before decompression, so compressed answers are refused.
    if response.headers.get("content-encoding", "identity").lower() != "identity":
        await response.aclose()
        raise _TooMuch("an answer that is packed")
    response.stream = _BoundedByteStream(response.stream)


@functools.cache
def _tls() -> ssl.SSLContext:
    """Return a shared TLS context, because each takes a tenth of a second and a megabyte."""
    return ssl.create_default_context()


def http_client(spec: ModelSpec) -> httpx2.AsyncClient:
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(logging.WARNING)
    return httpx2.AsyncClient(
        verify=_tls(),
        proxy=spec.proxy or None,
        trust_env=False,
        timeout=httpx2.Timeout(spec.deadline.total_seconds(), connect=CONNECT_SECONDS),
        headers={"Accept-Encoding": "identity"},
        follow_redirects=False,
        event_hooks={"response": [_limit_response]},
    )


def error_of_status(spec: ModelSpec, status: int, headers: Mapping[str, str]) -> Unavailable:
    """Return the error for an HTTP status other than success."""
    reason = f"model {spec.id!r} answered {status}"
    again = parse_retry_after(headers.get("retry-after", ""))
    if status in _BUSY:
        return Unavailable(reason, RATE_LIMITED, again)
    fault = UPSTREAM_FAILED if status >= 500 else MODEL_REFUSED
    return Unavailable(reason, fault, again)


def error_of_exception(spec: ModelSpec, error: BaseException) -> Unavailable:
    """Return the error for a missing or unreadable answer."""
    if isinstance(error, httpx2.TimeoutException | TimeoutError):
        return Unavailable(f"model {spec.id!r} did not answer in time", UPSTREAM_SLOW)
    if isinstance(error, _TooMuch):
        return Unavailable(f"model {spec.id!r} gave {error}", MODEL_REFUSED)
    if isinstance(error, httpx2.ConnectError):
        return Unavailable(f"model {spec.id!r} cannot be reached", UPSTREAM_DOWN)
    if isinstance(error, httpx2.HTTPError):
        return Unavailable(f"model {spec.id!r} broke off", UPSTREAM_FAILED)
    return Unavailable(f"model {spec.id!r} sent an invalid reply", UPSTREAM_FAILED)


def parse_retry_after(text: str) -> timedelta | None:
    """Parse a Retry-After header: seconds, or a date. Return None if it is invalid."""
    try:
        found = timedelta(seconds=float(text))
    except (ValueError, OverflowError):
        try:
            found = parsedate_to_datetime(text) - datetime.now(UTC)
        except (ValueError, TypeError):
            return None
    return min(max(found, timedelta()), MAX_WAIT)
