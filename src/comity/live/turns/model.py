"""Causes of turns, turn requests, stored turns and the limits that turns obey."""

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, Protocol

from comity.inference.messages import Content, ContentBlock, TokenUsage
from comity.inference.model import ConversationStep
from comity.live.hooks.model import tokens_of
from comity.live.settings import TurnSettings
from comity.mcp import jsonrpc
from comity.storage import values
from comity.toolkit.jobs import QueuedJob, WorkQueue


class TurnOrigin(StrEnum):
    """The kind of event that causes a turn."""

    PUSH = "push"
    CHANNEL = "channel"
    TOPIC = "topic"
    REQUEST = "request"


@dataclass(frozen=True, slots=True)
class TurnCause:
    """Why a turn is taken. `key` is permanent: a cause has at most one turn.

    `server` is the server whose message caused the turn. `depth` is the length of the chain of
    turns that caused each other. (D-69) `party` is the principal that calls the tools and pays.
    """

    origin: TurnOrigin
    key: str
    party: str
    server: str = ""
    feature: str = ""
    depth: int = 0
    # What servers may know about the origin of the turn and its targets. (§14.4)
    channels: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """A turn to take: the content to answer, the conversation, and the targets of the answer.

    `say_in` names targets: `topic:NAME` or `channel:SERVER/ID`.
    """

    cause: TurnCause
    conversation: str
    content: Content
    author: str = ""
    say_in: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TurnHandle:
    """A turn that is queued or done. `is_new` is false if its cause already had a turn."""

    inference: str
    conversation: str
    is_new: bool = True


class TurnStarter(Protocol):
    """Starts turns and waits for their results."""

    async def start(self, request: TurnRequest) -> TurnHandle:
        """Queue a turn. Returns once the turn is stored. Raises Unavailable."""
        ...

    async def wait_for_output(self, inference: str) -> str:
        """Wait for the end of a turn and return its output. Raises Unavailable if it failed."""
        ...


@dataclass(frozen=True, slots=True)
class OutputContext:
    """The turn and the target of an output."""

    inference: str
    conversation: str
    place: str


class OutputSink(Protocol):
    """Delivers output to topics and to channels of servers."""

    def candidates(self) -> Sequence[str]:
        """Return all targets by the names that servers may know."""
        ...

    def show_chunk(self, context: OutputContext, index: int, delta: str) -> None:
        """Show a redacted chunk to observers while the output is generated."""
        ...

    async def deliver(self, context: OutputContext, content: Content) -> None:
        """Deliver the output once per turn and target. Raises Unavailable and MalformedMessage."""
        ...

    async def show_thinking(self, context: OutputContext, text: str) -> None:
        """Show the model's reasoning to the servers that may see it. (D-73)"""
        ...


TURN_PAGE: Final = 50


class TurnState(StrEnum):
    """The progress of a turn. `decided` means that the output is fixed, but not yet delivered."""

    WAITING = "waiting"
    DECIDED = "decided"
    DONE = "done"
    WITHHELD = "withheld"
    FAILED = "failed"

    @property
    def is_open(self) -> bool:
        return self in OPEN


OPEN: Final = frozenset({TurnState.WAITING, TurnState.DECIDED})


@dataclass(frozen=True, slots=True)
class TurnFacts:
    """The facts of a turn that operators see afterwards."""

    model: str = ""
    usage: TokenUsage = field(default_factory=TokenUsage)
    injected: tuple[str, ...] = ()
    rewrote: tuple[str, ...] = ()
    tools: int = 0
    error: str = ""
    # The final state of the turn, once its output is delivered.
    ends_as: TurnState = TurnState.DONE


@dataclass(frozen=True, slots=True)
class InjectedText:
    """A text that a server added for the model. Long texts are shortened."""

    server: str
    namespace: str
    position: str
    text: str


@dataclass(frozen=True, slots=True)
class RewrittenPart:
    """A passage that servers kept, and the replacement of what followed it.

    Only the length of a removed passage is stored: a server may remove a secret.
    """

    kept: str
    removed: int = 0
    added: str = ""


@dataclass(frozen=True, slots=True)
class TurnHookTexts:
    """The texts that live servers added for the model, and their changes of its output."""

    injections: tuple[InjectedText, ...] = ()
    rewrite: tuple[RewrittenPart, ...] = ()


MAX_COMPARED_WORDS: Final = 300
_WORD_PATTERN: Final = re.compile(r"\s+|\w+|[^\w\s]")


def compare_texts(before: str, after: str) -> tuple[RewrittenPart, ...]:
    """Return the parts of a rewritten text, by words.

    The comparison takes bounded time, since a server chooses the text. A longer difference is one
    part.
    """
    old, new = _WORD_PATTERN.findall(before), _WORD_PATTERN.findall(after)
    start = _common_length(old, new)
    end = _common_length(old[start:][::-1], new[start:][::-1])
    lost, gained = old[start : len(old) - end], new[start : len(new) - end]
    tail = "".join(new[len(new) - end :])
    pairs = _common_words(lost, gained) if max(len(lost), len(gained)) <= MAX_COMPARED_WORDS else []
    parts: list[RewrittenPart] = []
    kept, i, j = "".join(new[:start]), 0, 0
    for place, other in [*pairs, (len(lost), len(gained))]:
        removed, added = sum(map(len, lost[i:place])), "".join(gained[j:other])
        if removed or added:
            parts.append(RewrittenPart(kept, removed, added))
            kept = ""
        kept += gained[other] if other < len(gained) else ""
        i, j = place + 1, other + 1
    rest = kept + tail
    return (*parts, RewrittenPart(rest)) if rest else tuple(parts)


def _common_length(one: Sequence[str], other: Sequence[str]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))


def _common_words(one: Sequence[str], other: Sequence[str]) -> list[tuple[int, int]]:
    """Return the places of a longest common subsequence."""
    lengths = [[0] * (len(other) + 1) for _ in range(len(one) + 1)]
    for i in range(len(one) - 1, -1, -1):
        for j in range(len(other) - 1, -1, -1):
            longest = max(lengths[i + 1][j], lengths[i][j + 1])
            lengths[i][j] = lengths[i + 1][j + 1] + 1 if one[i] == other[j] else longest
    found: list[tuple[int, int]] = []
    i = j = 0
    while i < len(one) and j < len(other):
        if one[i] == other[j]:
            found.append((i, j))
            i, j = i + 1, j + 1
        elif lengths[i + 1][j] >= lengths[i][j + 1]:
            i += 1
        else:
            j += 1
    return found


@dataclass(frozen=True, slots=True)
class StoredTurn:
    """A turn in the store. `errand` holds the remaining fields of its request as a document.

    `steps` are the model's messages and tool calls so far. `said` is the final output.
    """

    id: str
    cause: str
    conversation: str
    request_fields: Mapping[str, Any]
    content: Content
    at: datetime
    index: int = 0
    state: TurnState = TurnState.WAITING
    attempts: int = 0
    steps: tuple[ConversationStep, ...] = ()
    said: Content = ()
    thinking: str = ""
    facts: TurnFacts = field(default_factory=TurnFacts)
    hook_texts: TurnHookTexts = field(default_factory=TurnHookTexts)
    ended_at: datetime | None = None
    # A sequence number that grows with each new turn.
    number: int = 0


class TurnStore(Protocol):
    """Stores turns and conversations."""

    @property
    def jobs(self) -> WorkQueue: ...

    async def begin(self, turn: StoredTurn) -> StoredTurn:
        """Store a turn at the end of its conversation, or return the turn of the same cause."""
        ...

    async def get(self, id: str) -> StoredTurn | None: ...

    async def read(self, job: QueuedJob) -> StoredTurn | None:
        """Return the turn of a job."""
        ...

    async def write(self, job: QueuedJob, turn: StoredTurn) -> bool:
        """Store the progress of a turn. Return False and change nothing if the claim was lost.

        The claim ends with the turn.
        """
        ...

    async def retry(self, job: QueuedJob, turn: StoredTurn, due_at: datetime) -> bool:
        """Store the progress of a turn and schedule it again. Return False as `write` does."""
        ...

    async def history(self, conversation: str, before: int, limit: int) -> Sequence[StoredTurn]:
        """Return the turns with output before this index, latest first."""
        ...

    async def page(
        self, before: int = 0, limit: int = TURN_PAGE, conversation: str = ""
    ) -> Sequence[StoredTurn]:
        """Return turns before this number, latest first, of all conversations or of one."""
        ...

    async def prune(self, ended_before: datetime) -> int:
        """Delete the content of turns that ended before then. The turns themselves stay."""
        ...


MAX_TOOL_NAME_LENGTH: Final = 64
_INVALID_NAME_CHARACTER: Final = re.compile(r"[^A-Za-z0-9_-]")
_HELD_BACK_CHARACTERS: Final = 80
"""The number of characters held back, because the next ones may complete a secret."""

_BLOCK_START: Final = "-----BEGIN"
MAX_SHOWN_LENGTH: Final = 64 * 1024
"""Output beyond this length is not streamed. Observers get the rest at the end."""


def is_too_deep(depth: int, settings: TurnSettings) -> bool:
    """Whether the chain of turns that caused each other is too long. (D-69)"""
    return depth >= settings.max_chain


def tokens_for_history(window: int, settings: TurnSettings, *parts: Iterable[ContentBlock]) -> int:
    """Return how many tokens of a model's context window are left for earlier turns."""
    taken = settings.max_reply_tokens + settings.max_tool_tokens + sum(map(tokens_of, parts))
    return max(window - taken, 0)


def how_many_fit(weights: Iterable[int], room: int) -> int:
    """Return how many of the latest turns fit. The weights start with the latest turn."""
    number = 0
    for weight in weights:
        room -= weight
        if room < 0:
            break
        number += 1
    return number


def truncate_content(content: Content, maximum: int) -> Content:
    """Return the content, truncated to the length that a model gets."""
    kept: list[ContentBlock] = []
    for block in content:
        if block.size <= maximum:
            maximum -= block.size
            kept.append(block)
            continue
        if block.type == "text" and maximum > 0:
            kept.append(ContentBlock("text", block.text[:maximum]))
        kept.append(ContentBlock("text", "[the rest is left out: it is too long]"))
        break
    return tuple(kept)


def tool_names(names: Iterable[str]) -> Mapping[str, str]:
    """Map names that every model accepts to the tools' own names. The names are unique."""
    found: dict[str, str] = {}
    for name in names:
        plain = _INVALID_NAME_CHARACTER.sub("_", name)[:MAX_TOOL_NAME_LENGTH] or "_"
        number, given = 2, plain
        while given in found:
            ending = f"_{number}"
            given = plain[: MAX_TOOL_NAME_LENGTH - len(ending)] + ending
            number += 1
        found[given] = name
    return found


def select_presentable(text: str, shown: str, hide: Callable[[str], str]) -> str:
    """Return the next part of unfinished output that is safe to show.

    Empty if there is none yet.
    """
    if len(text) > MAX_SHOWN_LENGTH:
        return ""
    said = hide(text)
    begun = said.rfind(_BLOCK_START)
    end = (
        len(said) - _HELD_BACK_CHARACTERS
        if begun < 0
        else min(begun, len(said) - _HELD_BACK_CHARACTERS)
    )
    # Only whole words are shown, because half a word may be half a key.
    end = max(said.rfind(" ", 0, max(end, 0)), said.rfind("\n", 0, max(end, 0))) + 1
    if end <= len(shown) or not said.startswith(shown):
        return ""
    return said[len(shown) : end]


def to_stored_turn(request: TurnRequest, inference: str, at: datetime, maximum: int) -> StoredTurn:
    """Return the turn of a request. Its content is truncated to `maximum` characters."""
    content = truncate_content(request.content, maximum)
    name = key_of(request.cause.key)
    return StoredTurn(inference, name, request.conversation, _document(request), content, at)


def key_of(cause: str) -> str:
    """Return a name for a cause that every store accepts."""
    if values.is_name(cause):
        return cause
    return "sha256:" + hashlib.sha256(cause.encode(errors="surrogatepass")).hexdigest()


def request_of(turn: StoredTurn) -> TurnRequest:
    found = dict(turn.request_fields)
    cause = TurnCause(
        TurnOrigin(found["origin"]),
        turn.cause,
        found["party"],
        found["server"],
        found["feature"],
        found["depth"],
        found["channels"],
    )
    say_in = tuple(found["say_in"])
    return TurnRequest(cause, turn.conversation, turn.content, found["author"], say_in)


def _document(request: TurnRequest) -> Mapping[str, Any]:
    cause = request.cause
    document: dict[str, Any] = {
        "origin": str(cause.origin),
        "party": cause.party,
        "server": cause.server,
        "feature": cause.feature,
        "depth": cause.depth,
        "channels": dict(cause.channels),
        "author": request.author,
        "say_in": list(request.say_in),
    }
    # A round trip through JSON makes unserializable values fail here, and not when the turn runs.
    found: Mapping[str, Any] = jsonrpc.decode_value(jsonrpc.to_raw(document))  # pyright: ignore[reportAssignmentType]
    return found
