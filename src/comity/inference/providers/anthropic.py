"""Models that speak Anthropic's Messages API, on the official SDK."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final, cast

import anthropic
import httpx2
import msgspec

from comity.errors import Unavailable
from comity.inference.messages import Content, ContentBlock, FinishReason, ModelInfo, text_of
from comity.inference.model import (
    ConversationStep,
    ModelCompletion,
    ModelPrompt,
    ModelSpec,
    OnPiece,
)
from comity.inference.providers.base import (
    ReplyAccumulator,
    error_of_exception,
    error_of_status,
    http_client,
)

_FINISHES: Final = {
    "max_tokens": FinishReason.TOO_LONG,
    "model_context_window_exceeded": FinishReason.TOO_LONG,
    "stop_sequence": FinishReason.STOPPED,
}
ODD: Final = (ValueError, TypeError, AttributeError, KeyError, IndexError)


class AnthropicModel:
    """A model behind Anthropic's Messages API."""

    def __init__(self, spec: ModelSpec) -> None:
        self._spec = spec
        self._client = anthropic.AsyncAnthropic(
            api_key=spec.key or "none",
            base_url=spec.url or None,
            # InferenceService does the retries.
            max_retries=0,
            timeout=spec.deadline.total_seconds(),
            http_client=http_client(spec),
        )

    @property
    def info(self) -> ModelInfo:
        return self._spec.info

    async def complete(
        self, prompt: ModelPrompt, on_chunk: OnPiece | None = None
    ) -> ModelCompletion:
        gathered = ReplyAccumulator(self._spec.model, on_chunk)
        create = cast("Any", self._client.messages.create)
        try:
            if on_chunk is None:
                _read_answer(gathered, await create(**_request(self._spec, prompt)))
            else:
                await _stream(gathered, await create(**_request(self._spec, prompt), stream=True))
        except anthropic.APIStatusError as error:
            raise error_of_status(self._spec, error.status_code, error.response.headers) from None
        except anthropic.APIConnectionError as error:
            raise error_of_exception(self._spec, error.__cause__ or error) from None
        except (anthropic.AnthropicError, httpx2.HTTPError, *ODD) as error:
            raise error_of_exception(self._spec, error) from None
        return gathered.reply(prompt)

    async def close(self) -> None:
        await self._client.close()


# Requests.


def _request(spec: ModelSpec, prompt: ModelPrompt) -> dict[str, Any]:
    sees = "vision" in spec.capabilities
    asked: dict[str, Any] = {
        "model": spec.model,
        "messages": _merge_same_role([_message(step, sees=sees) for step in prompt.steps]),
        "max_tokens": min(prompt.max_tokens, spec.max_output),
    }
    if prompt.system:
        asked["system"] = text_of(prompt.system)
    # Anthropic's newer models accept no temperature. Other servers of its API do.
    if prompt.temperature is not None and spec.options.get("temperature", bool(spec.url)):
        # The scale of this API ends at 1, and the one of MCPL at 2.
        asked["extra_body"] = {"temperature": min(prompt.temperature, 1.0)}
    if prompt.stop:
        asked["stop_sequences"] = list(prompt.stop)
    if prompt.tools:
        asked["tools"] = [
            {"name": each.name, "description": each.description, "input_schema": dict(each.schema)}
            for each in prompt.tools
        ]
    return asked


def _merge_same_role(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Merge consecutive messages of the same role, so that the roles alternate."""
    found: list[dict[str, Any]] = []
    for each in messages:
        if not each["content"]:
            continue
        if found and found[-1]["role"] == each["role"]:
            found[-1]["content"] += each["content"]
        else:
            found.append(each)
    return found


def _message(step: ConversationStep, *, sees: bool) -> dict[str, Any]:
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
    # The API rejects empty text blocks.
    return [each for each in blocks if each["type"] != "text" or each["text"]]


def _block(block: ContentBlock, *, sees: bool) -> dict[str, Any]:
    if sees and block.type == "image" and block.data:
        source = {"type": "base64", "media_type": block.mime, "data": block.data}
        return {"type": "image", "source": source}
    return {"type": "text", "text": text_of((block,))}


# Replies.


def _read_answer(accumulator: ReplyAccumulator, answer: Any) -> None:
    for index, block in enumerate(answer.content):
        if block.type == "text":
            accumulator.add_text(block.text)
        elif block.type == "thinking":
            accumulator.add_thinking(block.thinking)
        elif block.type == "tool_use":
            accumulator.use(index, block.id, block.name, _to_text(block.input))
    _finish(accumulator, answer.stop_reason)
    _count(accumulator, answer.usage)


async def _stream(accumulator: ReplyAccumulator, stream: Any) -> None:
    is_over = False
    async with stream:
        async for event in cast("AsyncIterator[Any]", stream):
            is_over = is_over or event.type == "message_stop"
            _read_event(accumulator, event)
            await asyncio.sleep(0)
    if not is_over:
        raise httpx2.RemoteProtocolError("a stream that ends before its end")


def _read_event(accumulator: ReplyAccumulator, event: Any) -> None:
    if event.type == "message_start":
        _count(accumulator, event.message.usage)
    elif event.type == "content_block_start" and event.content_block.type == "tool_use":
        accumulator.use(int(event.index), event.content_block.id, event.content_block.name)
    elif event.type == "content_block_delta":
        _delta(accumulator, int(event.index), event.delta)
    elif event.type == "message_delta":
        _finish(accumulator, event.delta.stop_reason)
        _count(accumulator, event.usage)


def _delta(accumulator: ReplyAccumulator, index: int, delta: Any) -> None:
    if delta.type == "text_delta":
        accumulator.add_text(delta.text)
    elif delta.type == "thinking_delta":
        accumulator.add_thinking(delta.thinking)
    elif delta.type == "input_json_delta":
        accumulator.use(index, arguments=delta.partial_json)


def _to_text(found: Any) -> str:
    return found if isinstance(found, str) else msgspec.json.encode(found).decode()


def _finish(accumulator: ReplyAccumulator, reason: object) -> None:
    if isinstance(reason, str):
        accumulator.finish = _FINISHES.get(reason, FinishReason.END)


def _count(accumulator: ReplyAccumulator, usage: Any) -> None:
    if usage is not None:
        read = [
            getattr(usage, name, None)
            for name in ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
        ]
        accumulator.count(sum(each for each in read if type(each) is int), usage.output_tokens)


def make(spec: ModelSpec) -> AnthropicModel:
    try:
        return AnthropicModel(spec)
    except anthropic.AnthropicError:
        raise Unavailable(f"model {spec.id!r} cannot be made") from None
