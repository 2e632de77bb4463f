"""Models that speak Anthropic's Messages, on the official SDK."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final, cast

import anthropic
import httpx2
import msgspec

from comity.adapters.models.gathering import Gathered
from comity.adapters.models.reaching import broken, http_client, refused
from comity.ports.models import ModelSpec, OnPiece, Prompt, Reply, Step
from comity.wire.contents import Block, Content, text_of
from comity.wire.errors import Unavailable
from comity.wire.inference import Finish, ModelInfo

_FINISHES: Final = {
    "max_tokens": Finish.TOO_LONG,
    "model_context_window_exceeded": Finish.TOO_LONG,
    "stop_sequence": Finish.STOPPED,
}
ODD: Final = (ValueError, TypeError, AttributeError, KeyError, IndexError)


class AnthropicModel:
    def __init__(self, spec: ModelSpec) -> None:
        self._spec = spec
        self._client = anthropic.AsyncAnthropic(
            api_key=spec.key or "none",
            base_url=spec.url or None,
            max_retries=0,
            timeout=spec.deadline.total_seconds(),
            http_client=http_client(spec),
        )

    @property
    def info(self) -> ModelInfo:
        return self._spec.info

    async def complete(self, prompt: Prompt, on_piece: OnPiece | None = None) -> Reply:
        gathered = Gathered(self._spec.model, on_piece)
        create = cast("Any", self._client.messages.create)
        try:
            if on_piece is None:
                _take(gathered, await create(**_request(self._spec, prompt)))
            else:
                await _stream(gathered, await create(**_request(self._spec, prompt), stream=True))
        except anthropic.APIStatusError as error:
            raise refused(self._spec, error.status_code, error.response.headers) from None
        except anthropic.APIConnectionError as error:
            raise broken(self._spec, error.__cause__ or error) from None
        except (anthropic.AnthropicError, httpx2.HTTPError, *ODD) as error:
            raise broken(self._spec, error) from None
        return gathered.reply(prompt)

    async def close(self) -> None:
        await self._client.close()


# What is asked.


def _request(spec: ModelSpec, prompt: Prompt) -> dict[str, Any]:
    sees = "vision" in spec.capabilities
    asked: dict[str, Any] = {
        "model": spec.model,
        "messages": _alternating([_message(step, sees=sees) for step in prompt.steps]),
        "max_tokens": min(prompt.max_tokens, spec.max_output),
    }
    if prompt.system:
        asked["system"] = text_of(prompt.system)
    # The vendor's newer models know no temperature any more; other servers of its API do.
    if prompt.temperature is not None and spec.options.get("temperature", bool(spec.url)):
        # Its scale ends where MCPL's is half way.
        asked["extra_body"] = {"temperature": min(prompt.temperature, 1.0)}
    if prompt.stop:
        asked["stop_sequences"] = list(prompt.stop)
    if prompt.tools:
        asked["tools"] = [
            {"name": each.name, "description": each.description, "input_schema": dict(each.schema)}
            for each in prompt.tools
        ]
    return asked


def _alternating(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One after the other: what the same one says twice is one message."""
    found: list[dict[str, Any]] = []
    for each in messages:
        if not each["content"]:
            continue
        if found and found[-1]["role"] == each["role"]:
            found[-1]["content"] += each["content"]
        else:
            found.append(each)
    return found


def _message(step: Step, *, sees: bool) -> dict[str, Any]:
    content: list[dict[str, Any]] = [
        {
            "type": "tool_result",
            "tool_use_id": each.id,
            "content": _content(each.content, sees=sees),
            "is_error": each.is_error,
        }
        for each in step.results
    ]
    content += _content(step.content, sees=sees)
    for use in step.uses:
        block = {"type": "tool_use", "id": use.id, "name": use.name}
        content.append({**block, "input": dict(use.arguments)})
    return {"role": step.role, "content": content}


def _content(content: Content, *, sees: bool) -> list[dict[str, Any]]:
    blocks = (_block(each, sees=sees) for each in content)
    # A text without a character is refused.
    return [each for each in blocks if each["type"] != "text" or each["text"]]


def _block(block: Block, *, sees: bool) -> dict[str, Any]:
    if sees and block.type == "image" and block.data:
        source = {"type": "base64", "media_type": block.mime, "data": block.data}
        return {"type": "image", "source": source}
    return {"type": "text", "text": text_of((block,))}


# What is answered.


def _take(gathered: Gathered, answer: Any) -> None:
    for index, block in enumerate(answer.content):
        if block.type == "text":
            gathered.say(block.text)
        elif block.type == "thinking":
            gathered.think(block.thinking)
        elif block.type == "tool_use":
            gathered.use(index, block.id, block.name, _written(block.input))
    _finish(gathered, answer.stop_reason)
    _count(gathered, answer.usage)


async def _stream(gathered: Gathered, stream: Any) -> None:
    is_over = False
    async with stream:
        async for event in cast("AsyncIterator[Any]", stream):
            is_over = is_over or event.type == "message_stop"
            _hear(gathered, event)
            await asyncio.sleep(0)
    if not is_over:
        raise httpx2.RemoteProtocolError("a stream that ends before its end")


def _hear(gathered: Gathered, event: Any) -> None:
    if event.type == "message_start":
        _count(gathered, event.message.usage)
    elif event.type == "content_block_start" and event.content_block.type == "tool_use":
        gathered.use(int(event.index), event.content_block.id, event.content_block.name)
    elif event.type == "content_block_delta":
        _delta(gathered, int(event.index), event.delta)
    elif event.type == "message_delta":
        _finish(gathered, event.delta.stop_reason)
        _count(gathered, event.usage)


def _delta(gathered: Gathered, index: int, delta: Any) -> None:
    if delta.type == "text_delta":
        gathered.say(delta.text)
    elif delta.type == "thinking_delta":
        gathered.think(delta.thinking)
    elif delta.type == "input_json_delta":
        gathered.use(index, arguments=delta.partial_json)


def _written(found: Any) -> str:
    return found if isinstance(found, str) else msgspec.json.encode(found).decode()


def _finish(gathered: Gathered, reason: object) -> None:
    if isinstance(reason, str):
        gathered.finish = _FINISHES.get(reason, Finish.END)


def _count(gathered: Gathered, usage: Any) -> None:
    if usage is not None:
        read = [
            getattr(usage, name, None)
            for name in ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
        ]
        gathered.count(sum(each for each in read if type(each) is int), usage.output_tokens)


def make(spec: ModelSpec) -> AnthropicModel:
    try:
        return AnthropicModel(spec)
    except anthropic.AnthropicError:
        raise Unavailable(f"model {spec.id!r} cannot be made") from None
