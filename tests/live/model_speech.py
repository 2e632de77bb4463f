"""What models say, in the words of OpenAI's and of Anthropic's API: whole, and as events."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

PORTION: Final = 8
"""Characters of a piece, where nothing else is said."""


@dataclass(frozen=True, slots=True)
class Said:
    """One reply. `uses` are tools to use: {name, arguments, id}; arguments may be broken JSON."""

    text: str = ""
    uses: tuple[Mapping[str, Any], ...] = ()
    thinking: str = ""
    # In the words of OpenAI: stop, length, tool_calls; `sequence` for a stop sequence.
    finish: str = ""
    usage: tuple[int, int] | None = None
    pieces: tuple[str, ...] = ()
    # Other than a proper reply: an error, with its headers; bytes of a body as they are.
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    body: str | None = None
    # A stream is cut after so many pieces. Until `release` it is held: before the first, or after
    # so many pieces. A pause before each piece, in seconds.
    cut_after: int | None = None
    hold: bool = False
    hold_after: int | None = None
    pause: float = 0.0
    when: str = ""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a client sent."""

    api: str
    body: Mapping[str, Any]
    headers: Mapping[str, str]

    @property
    def last(self) -> str:
        """The last thing said to the model, as text."""
        messages: list[Any] = self.body.get("messages") or [{}]
        return text_in(messages[-1].get("content"))


def text_in(content: object) -> str:
    if isinstance(content, str):
        return content
    blocks = cast("list[Any]", content) if isinstance(content, list) else []
    texts = [str(each.get("text") or text_in(each.get("content"))) for each in blocks]
    return "\n".join(each for each in texts if each)


def _usage(asked: Asked, said: Said) -> tuple[int, int]:
    read = len(json.dumps(asked.body.get("messages"))) // 4
    return said.usage or (max(1, read), max(1, len(said.text) // 4))


def _pieces(said: Said) -> tuple[str, ...]:
    starts = range(0, len(said.text), PORTION)
    return said.pieces or tuple(said.text[start : start + PORTION] for start in starts)


def _arguments(use: Mapping[str, Any]) -> str:
    found = use.get("arguments", {})
    return found if isinstance(found, str) else json.dumps(found)


def _id(use: Mapping[str, Any], index: int) -> str:
    return str(use.get("id") or f"use_{index}")


def _model(asked: Asked) -> str:
    return str(asked.body.get("model"))


# OpenAI Chat Completions.


def _openai_finish(said: Said) -> str:
    if said.finish == "sequence":
        return "stop"
    return said.finish or ("tool_calls" if said.uses else "stop")


def _openai_uses(said: Said) -> list[dict[str, Any]]:
    return [
        {
            "id": _id(use, index),
            "type": "function",
            "function": {"name": use["name"], "arguments": _arguments(use)},
        }
        for index, use in enumerate(said.uses)
    ]


def _openai_usage(asked: Asked, said: Said) -> dict[str, int]:
    read, written = _usage(asked, said)
    return {
        "prompt_tokens": read,
        "completion_tokens": written,
        "total_tokens": read + written,
    }


def openai_whole(asked: Asked, said: Said) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": said.text or None}
    if said.thinking:
        message["reasoning_content"] = said.thinking
    if said.uses:
        message["tool_calls"] = _openai_uses(said)
    choice = {"index": 0, "message": message, "finish_reason": _openai_finish(said)}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": _model(asked),
        "choices": [choice],
        "usage": _openai_usage(asked, said),
    }


def openai_events(asked: Asked, said: Said) -> Iterable[tuple[bool, bytes]]:
    def event(choices: list[dict[str, Any]], **more: object) -> bytes:
        head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1}
        body = {**head, "model": _model(asked), "choices": choices, **more}
        return b"data: " + json.dumps(body).encode() + b"\n\n"

    def delta(**members: object) -> bytes:
        return event([{"index": 0, "delta": members, "finish_reason": None}])

    yield False, delta(role="assistant", content="")
    if said.thinking:
        yield False, delta(reasoning_content=said.thinking)
    for piece in _pieces(said):
        yield True, delta(content=piece)
    for index, use in enumerate(_openai_uses(said)):
        written = use["function"].pop("arguments")
        begun = {"index": index, **use, "function": {**use["function"], "arguments": ""}}
        yield False, delta(tool_calls=[begun])
        half = len(written) // 2
        for part in (written[:half], written[half:]):
            yield False, delta(tool_calls=[{"index": index, "function": {"arguments": part}}])
    yield True, event([{"index": 0, "delta": {}, "finish_reason": _openai_finish(said)}])
    options: dict[str, Any] = asked.body.get("stream_options") or {}
    if options.get("include_usage"):
        yield False, event([], usage=_openai_usage(asked, said))
    yield False, b"data: [DONE]\n\n"


# Anthropic Messages.

_REASONS: Final = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "sequence": "stop_sequence",
}


def _anthropic_finish(said: Said) -> str:
    return _REASONS.get(said.finish, said.finish) or ("tool_use" if said.uses else "end_turn")


def _anthropic_usage(asked: Asked, said: Said) -> dict[str, int]:
    read, written = _usage(asked, said)
    return {"input_tokens": read, "output_tokens": written}


def _anthropic_input(use: Mapping[str, Any]) -> object:
    try:
        return json.loads(_arguments(use))
    except ValueError:
        return _arguments(use)


def _anthropic_head(asked: Asked) -> dict[str, Any]:
    head = {"id": "msg_1", "type": "message", "role": "assistant", "model": _model(asked)}
    return {**head, "stop_sequence": None}


def anthropic_whole(asked: Asked, said: Said) -> dict[str, Any]:
    content: list[dict[str, Any]] = []
    if said.thinking:
        content.append({"type": "thinking", "thinking": said.thinking, "signature": "s"})
    if said.text:
        content.append({"type": "text", "text": said.text})
    for index, use in enumerate(said.uses):
        used = {"type": "tool_use", "id": _id(use, index), "name": use["name"]}
        content.append({**used, "input": _anthropic_input(use)})
    ending = {"stop_reason": _anthropic_finish(said), "usage": _anthropic_usage(asked, said)}
    return {**_anthropic_head(asked), "content": content, **ending}


def anthropic_events(asked: Asked, said: Said) -> Iterable[tuple[bool, bytes]]:
    def event(name: str, **members: object) -> bytes:
        data = json.dumps({"type": name, **members})
        return f"event: {name}\ndata: {data}\n\n".encode()

    def block(index: int, begun: object, deltas: Iterable[tuple[bool, object]]) -> Any:
        yield False, event("content_block_start", index=index, content_block=begun)
        for is_piece, delta in deltas:
            yield is_piece, event("content_block_delta", index=index, delta=delta)
        yield False, event("content_block_stop", index=index)

    usage = _anthropic_usage(asked, said)
    head: dict[str, Any] = {**_anthropic_head(asked), "content": [], "stop_reason": None}
    yield False, event("message_start", message={**head, "usage": {**usage, "output_tokens": 1}})
    index = 0
    if said.thinking:
        thought = [(False, {"type": "thinking_delta", "thinking": said.thinking})]
        yield from block(index, {"type": "thinking", "thinking": "", "signature": ""}, thought)
        index += 1
    if said.text or said.pieces:
        words = [(True, {"type": "text_delta", "text": each}) for each in _pieces(said)]
        yield from block(index, {"type": "text", "text": ""}, words)
        index += 1
    for number, use in enumerate(said.uses):
        written = _arguments(use)
        half = len(written) // 2
        parts = [
            (False, {"type": "input_json_delta", "partial_json": part})
            for part in (written[:half], written[half:])
        ]
        begun: dict[str, Any] = {"type": "tool_use", "id": _id(use, number), "name": use["name"]}
        begun["input"] = {}
        yield from block(index, begun, parts)
        index += 1
    ending = {"stop_reason": _anthropic_finish(said), "stop_sequence": None}
    yield True, event("message_delta", delta=ending, usage=usage)
    yield False, event("message_stop")
