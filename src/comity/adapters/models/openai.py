"""Models that speak OpenAI's Chat Completions, on the official SDK; of whatever vendor they are."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final, cast

import httpx2
import msgspec
import openai

from comity.adapters.models.gathering import Gathered
from comity.adapters.models.reaching import broken, http_client, refused
from comity.ports.models import ModelSpec, OnPiece, Prompt, Reply, Step
from comity.wire.contents import Block, Content, text_of
from comity.wire.errors import Unavailable
from comity.wire.inference import Finish, ModelInfo

_FINISHES: Final = {"length": Finish.TOO_LONG}
# What the SDK makes of an answer of another shape than it expects.
ODD: Final = (ValueError, TypeError, AttributeError, KeyError, IndexError)


class OpenAIModel:
    def __init__(self, spec: ModelSpec) -> None:
        self._spec = spec
        self._client = openai.AsyncOpenAI(
            # The SDK refuses to be without one; servers of one's own often need none.
            api_key=spec.key or "none",
            base_url=spec.url or None,
            max_retries=0,
            http_client=http_client(spec),
        )

    @property
    def info(self) -> ModelInfo:
        return self._spec.info

    async def complete(self, prompt: Prompt, on_piece: OnPiece | None = None) -> Reply:
        gathered = Gathered(self._spec.model, on_piece)
        create = cast("Any", self._client.chat.completions.create)
        try:
            if on_piece is None:
                _take(gathered, await create(**_request(self._spec, prompt)))
            else:
                streaming = {"stream": True, "stream_options": {"include_usage": True}}
                await _stream(gathered, await create(**_request(self._spec, prompt), **streaming))
        except openai.APIStatusError as error:
            raise refused(self._spec, error.status_code, error.response.headers) from None
        except openai.APIConnectionError as error:
            raise broken(self._spec, error.__cause__ or error) from None
        except (openai.OpenAIError, httpx2.HTTPError, *ODD) as error:
            raise broken(self._spec, error) from None
        return gathered.reply(prompt)

    async def close(self) -> None:
        await self._client.close()


# What is asked.


def _request(spec: ModelSpec, prompt: Prompt) -> dict[str, Any]:
    messages = _system(prompt.system)
    for step in prompt.steps:
        messages += _messages(step, sees="vision" in spec.capabilities)
    # The vendor's newer models know only the longer name, and other servers only the shorter.
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


def _messages(step: Step, *, sees: bool) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = [
        {"role": "tool", "tool_call_id": each.id, "content": text_of(each.content)}
        for each in step.results
    ]
    if step.role == "assistant":
        messages.append(_assistant(step))
    elif step.content:
        messages.append({"role": "user", "content": _content(step.content, sees=sees)})
    return messages


def _assistant(step: Step) -> dict[str, Any]:
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
    if not any(_is_seen(block, sees=sees) for block in content):
        return text_of(content)
    return [
        _image(block) if _is_seen(block, sees=sees) else {"type": "text", "text": text_of((block,))}
        for block in content
    ]


def _is_seen(block: Block, *, sees: bool) -> bool:
    return sees and block.type == "image" and bool(block.data)


def _image(block: Block) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": f"data:{block.mime};base64,{block.data}"}}


# What is answered.


def _take(gathered: Gathered, answer: Any) -> None:
    choice = answer.choices[0]
    message = choice.message
    gathered.think(getattr(message, "reasoning_content", None))
    gathered.say(message.content)
    for index, each in enumerate(message.tool_calls or ()):
        gathered.use(index, each.id, each.function.name, each.function.arguments)
    _finish(gathered, choice.finish_reason)
    _count(gathered, answer.usage)


async def _stream(gathered: Gathered, stream: Any) -> None:
    is_over = False
    async with stream:
        async for event in cast("AsyncIterator[Any]", stream):
            _count(gathered, getattr(event, "usage", None))
            for choice in event.choices or ():
                is_over = is_over or bool(choice.finish_reason)
                _finish(gathered, choice.finish_reason)
                _delta(gathered, choice.delta)
            # Pieces that lie ready are told one after the other without a pause; others live too.
            await asyncio.sleep(0)
    if not is_over:
        raise httpx2.RemoteProtocolError("a stream that ends before its end")


def _delta(gathered: Gathered, delta: Any) -> None:
    gathered.think(getattr(delta, "reasoning_content", None))
    gathered.say(delta.content)
    for each in delta.tool_calls or ():
        function = each.function
        gathered.use(int(each.index), each.id, function.name, function.arguments)


def _finish(gathered: Gathered, reason: object) -> None:
    if isinstance(reason, str):
        gathered.finish = _FINISHES.get(reason, Finish.END)


def _count(gathered: Gathered, usage: Any) -> None:
    if usage is not None:
        gathered.count(usage.prompt_tokens, usage.completion_tokens)


def make(spec: ModelSpec) -> OpenAIModel:
    try:
        return OpenAIModel(spec)
    except openai.OpenAIError:
        raise Unavailable(f"model {spec.id!r} cannot be made") from None
