"""Models of any vendor that speak OpenAI's Chat Completions, on the official SDK."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final, cast

import httpx2
import msgspec
import openai

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

_FINISHES: Final = {"length": FinishReason.TOO_LONG}
# The exceptions that the SDK raises for an answer of an unexpected shape.
ODD: Final = (ValueError, TypeError, AttributeError, KeyError, IndexError)


class OpenAIModel:
    """A model behind an OpenAI-compatible API."""

    def __init__(self, spec: ModelSpec) -> None:
        self._spec = spec
        self._client = openai.AsyncOpenAI(
            # The SDK requires a key, while self-hosted servers often need none.
            api_key=spec.key or "none",
            base_url=spec.url or None,
            # InferenceService does the retries.
            max_retries=0,
            http_client=http_client(spec),
        )

    @property
    def info(self) -> ModelInfo:
        return self._spec.info

    async def complete(
        self, prompt: ModelPrompt, on_chunk: OnPiece | None = None
    ) -> ModelCompletion:
        gathered = ReplyAccumulator(self._spec.model, on_chunk)
        create = cast("Any", self._client.chat.completions.create)
        try:
            if on_chunk is None:
                _read_answer(gathered, await create(**_request(self._spec, prompt)))
            else:
                streaming = {"stream": True, "stream_options": {"include_usage": True}}
                await _stream(gathered, await create(**_request(self._spec, prompt), **streaming))
        except openai.APIStatusError as error:
            raise error_of_status(self._spec, error.status_code, error.response.headers) from None
        except openai.APIConnectionError as error:
            raise error_of_exception(self._spec, error.__cause__ or error) from None
        except (openai.OpenAIError, httpx2.HTTPError, *ODD) as error:
            raise error_of_exception(self._spec, error) from None
        return gathered.reply(prompt)

    async def close(self) -> None:
        await self._client.close()


# Requests.


def _request(spec: ModelSpec, prompt: ModelPrompt) -> dict[str, Any]:
    messages = _system(prompt.system)
    for step in prompt.steps:
        messages += _messages(step, sees="vision" in spec.capabilities)
    # OpenAI's newer models accept only `max_completion_tokens`, and other servers only
    # `max_tokens`.
    usual = "max_tokens" if spec.url else "max_completion_tokens"
    limit = str(spec.options.get("max_tokens_name", usual))
    asked: dict[str, Any] = {
        "model": spec.model,
        "messages": messages,
        limit: min(prompt.max_tokens, spec.max_output),
    }
    if prompt.temperature is not None:
        asked["temperature"] = prompt.temperature
    if prompt.stop:
        asked["stop"] = list(prompt.stop)
    if prompt.tools:
        asked["tools"] = [
            {
                "type": "function",
                "function": {
                    "name": each.name,
                    "description": each.description,
                    "parameters": dict(each.schema),
                },
            }
            for each in prompt.tools
        ]
    return asked


def _system(content: Content) -> list[dict[str, Any]]:
    return [{"role": "system", "content": text_of(content)}] if content else []


def _messages(step: ConversationStep, *, sees: bool) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = [
        {"role": "tool", "tool_call_id": each.id, "content": text_of(each.content)}
        for each in step.results
    ]
    if step.role == "assistant":
        messages.append(_assistant(step))
    elif step.content:
        messages.append({"role": "user", "content": _content(step.content, sees=sees)})
    return messages


def _assistant(step: ConversationStep) -> dict[str, Any]:
    said: dict[str, Any] = {"role": "assistant", "content": text_of(step.content) or None}
    if step.uses:
        said["tool_calls"] = [
            {
                "id": each.id,
                "type": "function",
                "function": {
                    "name": each.name,
                    "arguments": each.broken or msgspec.json.encode(each.arguments).decode(),
                },
            }
            for each in step.uses
        ]
    return said


def _content(content: Content, *, sees: bool) -> str | list[dict[str, Any]]:
    if not any(_is_visible_image(block, sees=sees) for block in content):
        return text_of(content)
    return [
        _image(block)
        if _is_visible_image(block, sees=sees)
        else {"type": "text", "text": text_of((block,))}
        for block in content
    ]


def _is_visible_image(block: ContentBlock, *, sees: bool) -> bool:
    return sees and block.type == "image" and bool(block.data)


def _image(block: ContentBlock) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": f"data:{block.mime};base64,{block.data}"}}


# Replies.


def _read_answer(accumulator: ReplyAccumulator, answer: Any) -> None:
    choice = answer.choices[0]
    message = choice.message
    accumulator.add_thinking(getattr(message, "reasoning_content", None))
    accumulator.add_text(message.content)
    for index, each in enumerate(message.tool_calls or ()):
        accumulator.use(index, each.id, each.function.name, each.function.arguments)
    _finish(accumulator, choice.finish_reason)
    _count(accumulator, answer.usage)


async def _stream(accumulator: ReplyAccumulator, stream: Any) -> None:
    is_over = False
    async with stream:
        async for event in cast("AsyncIterator[Any]", stream):
            _count(accumulator, getattr(event, "usage", None))
            for choice in event.choices or ():
                is_over = is_over or bool(choice.finish_reason)
                _finish(accumulator, choice.finish_reason)
                _delta(accumulator, choice.delta)
            # Buffered chunks arrive without a real wait, so this lets other tasks run.
            await asyncio.sleep(0)
    if not is_over:
        raise httpx2.RemoteProtocolError("a stream that ends before its end")


def _delta(accumulator: ReplyAccumulator, delta: Any) -> None:
    accumulator.add_thinking(getattr(delta, "reasoning_content", None))
    accumulator.add_text(delta.content)
    for each in delta.tool_calls or ():
        function = each.function
        accumulator.use(int(each.index), each.id, function.name, function.arguments)


def _finish(accumulator: ReplyAccumulator, reason: object) -> None:
    if isinstance(reason, str):
        accumulator.finish = _FINISHES.get(reason, FinishReason.END)


def _count(accumulator: ReplyAccumulator, usage: Any) -> None:
    if usage is not None:
        accumulator.count(usage.prompt_tokens, usage.completion_tokens)


def make(spec: ModelSpec) -> OpenAIModel:
    try:
        return OpenAIModel(spec)
    except openai.OpenAIError:
        raise Unavailable(f"model {spec.id!r} cannot be made") from None
