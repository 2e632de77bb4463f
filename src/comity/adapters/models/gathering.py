"""What a model says, put together piece by piece within bounds: its server may be a stranger.

What is no tool use that could be judged stays as it was said, under `broken`.
"""

from dataclasses import dataclass, field
from typing import Any, Final, cast

from comity.ports.models import OnPiece, Piece, Prompt, Reply, ToolUse
from comity.wire import jsonrpc
from comity.wire.contents import Content, said
from comity.wire.errors import MODEL_REFUSED, MalformedMessage, Unavailable
from comity.wire.inference import Finish, Usage

MOST_CHARACTERS: Final = 4_000_000
MOST_USES: Final = 128
MOST_ARGUMENTS: Final = 1_000_000
LONGEST_NAME: Final = 200
DEEPEST: Final = 64
_SHOWN_BROKEN: Final = 2_000
_CHARACTERS_PER_TOKEN: Final = 4.3


@dataclass(slots=True)
class _Use:
    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list[str])
    size: int = 0


class Gathered:
    """One reply as it comes. Raises Unavailable where it is too much."""

    def __init__(self, model: str, on_piece: OnPiece | None = None) -> None:
        self.model = model
        self.finish = Finish.END
        self.input = 0
        self.output = 0
        self._on_piece = on_piece
        self._text: list[str] = []
        self._thinking: list[str] = []
        self._size = 0
        self._uses: dict[int, _Use] = {}

    def say(self, text: object) -> None:
        self._add(self._text, text, is_thinking=False)

    def think(self, text: object) -> None:
        self._add(self._thinking, text, is_thinking=True)

    def use(self, index: int, id: object = "", name: object = "", arguments: object = "") -> None:
        """A tool use, or a part of one."""
        found = self._uses.setdefault(index, _Use())
        if len(self._uses) > MOST_USES:
            raise _too_much(self.model, f"more than {MOST_USES} tools at once")
        found.id = str(id or found.id)[:LONGEST_NAME]
        found.name = str(name or found.name)[: LONGEST_NAME + 1]
        part = arguments if isinstance(arguments, str) else ""
        found.size += len(part)
        if found.size > MOST_ARGUMENTS:
            raise _too_much(self.model, "arguments that are too long")
        found.arguments.append(part)

    def count(self, read: object, written: object) -> None:
        """How many tokens it was; what is no number, or less than before, is not taken."""
        self.input = max(self.input, _number(read))
        self.output = max(self.output, _number(written))

    def reply(self, prompt: Prompt) -> Reply:
        text, uses = "".join(self._text), self._used()
        # Budgets need a number; a server that gives none gets one by length.
        estimated = Usage(self.input or about_tokens(prompt), self.output or _about(self._size))
        return Reply(said(text), self.finish, estimated, self.model, uses, "".join(self._thinking))

    def _used(self) -> tuple[ToolUse, ...]:
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
        if self._on_piece is not None:
            self._on_piece(Piece(text, is_thinking))


def about_tokens(prompt: Prompt) -> int:
    """About how many tokens a prompt is, by its length."""
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


def _number(found: object) -> int:
    return found if type(found) is int and 0 <= found <= 10**9 else 0


def _use(id: str, name: str, written: str) -> ToolUse:
    raw = (written or "{}").encode("utf-8", "replace")
    try:
        if jsonrpc.excess(raw, DEEPEST):
            return ToolUse(id, name, {}, written[:_SHOWN_BROKEN])
        found = jsonrpc.value(raw)
    except MalformedMessage:
        found = None
    if not isinstance(found, dict) or not 0 < len(name) <= LONGEST_NAME:
        return ToolUse(id, name[:LONGEST_NAME], {}, written[:_SHOWN_BROKEN] or "{}")
    return ToolUse(id, name, cast("dict[str, Any]", found))


def _too_much(model: str, what: str) -> Unavailable:
    return Unavailable(f"model {model!r} said {what}", MODEL_REFUSED)
