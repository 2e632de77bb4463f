"""One JSON-RPC conversation: ids minted, what is open, progress, cancellation. (MCP §2, §4.4)

Rule 1: every question to the peer carries an id minted here; the asker's own id never leaves.
Rule 2: an answer is taken once, from the stream its question opened, by an id of exact type. All
        else is a stray: late, repeated, pre-answered or on somebody else's stream.
Rule 3: a message with a method is never an answer, whatever id it reuses.
Rule 4: a stream is named by the minted id of the question that opened it. STANDALONE is the stream
        nobody opened by a question; UNKNOWN is a carrier with one stream for all (stdio).
Rule 5: no clock, no socket; `comity.kernel.links` owns both.
"""

from collections.abc import Callable
from dataclasses import dataclass

from msgspec import UNSET, Raw, Struct, structs

from comity.wire import jsonrpc
from comity.wire.errors import EXHAUSTED, INVALID_REQUEST, UPSTREAM_FAILED, MalformedMessage
from comity.wire.jsonrpc import Frame, Id
from comity.wire.lines import BACKSLASH
from comity.wire.mcp import CANCELLED, LISTEN, PROGRESS, SUBSCRIPTION_ID, UNKNOWN, Stream
from comity.wire.streaming import TOLD, named_in


class Answer[Errand](Struct):
    """The peer answered; `frame` bears the asker's own id again."""

    errand: Errand
    frame: Frame


class Question[Errand](Struct):
    """The peer asks; `amid` is the errand on whose stream it asked, where that is known."""

    frame: Frame
    amid: Errand | None


class Notice[Errand](Struct):
    """The peer tells; `amid` is the errand it belongs to, where that is known."""

    frame: Frame
    amid: Errand | None


class Withdrawal[Errand](Struct):
    """The peer takes back a question of its own."""

    errand: Errand
    reason: Raw | None


class Stray(Struct):
    """Nothing that anybody waits for; only worth counting."""

    because: str


type Heard[Errand] = Answer[Errand] | Question[Errand] | Notice[Errand] | Withdrawal[Errand] | Stray


@dataclass(slots=True)
class _Open[Errand]:
    errand: Errand
    asker_id: Id
    token: Raw | None
    listens: bool


class Conversation[Errand]:
    """What is open between Comity and one peer. An errand is the caller's own object."""

    __slots__ = ("_limit", "_next", "_open", "_taken", "on_end")

    def __init__(self, limit: int = 4096) -> None:
        self._next = 0
        self._limit = limit
        self._open: dict[int, _Open[Errand]] = {}
        self._taken: dict[Id, Errand] = {}
        # Who hears that the peer owes nothing any more to an errand, before the errand does.
        self.on_end: Callable[[Errand], None] | None = None

    def __len__(self) -> int:
        return len(self._open) + len(self._taken)

    @property
    def waiting(self) -> list[Errand]:
        """Whose questions to the peer are unanswered."""
        return [entry.errand for entry in self._open.values()]

    def ask(self, frame: Frame, errand: Errand, *, mint_token: bool = False) -> Frame:
        """The question as the peer shall see it, under a minted id (and token, if asked)."""
        if len(self._open) >= self._limit:
            raise MalformedMessage("too many calls are open at once; wait for some", EXHAUSTED)
        asker_id, method = frame.id, frame.method
        if asker_id is UNSET or asker_id is None or method is UNSET:
            raise MalformedMessage("only a request can be asked", INVALID_REQUEST)
        self._next = minted = self._next + 1
        token = None
        if mint_token and frame.params is not UNSET:
            params, token = _swap_token(frame.params, minted)
            if token is not None:
                frame = jsonrpc.with_params(frame, params)
        self._open[minted] = _Open(errand, asker_id, token, method == LISTEN)
        return jsonrpc.with_id(frame, minted)

    def take(self, asker_id: Id, errand: Errand) -> None:
        """Remember a question of the peer's until it is settled."""
        if asker_id in self._taken:
            raise MalformedMessage(f"id {asker_id!r} is already in use", INVALID_REQUEST)
        if len(self._taken) >= self._limit:
            raise MalformedMessage("too many calls are open at once; wait for some", EXHAUSTED)
        self._taken[asker_id] = errand

    def settle(self, asker_id: Id) -> None:
        """A question of the peer's has its answer, or will never have one."""
        self._taken.pop(asker_id, None)

    def hear(self, frame: Frame, stream: Stream) -> Heard[Errand]:
        """What a message from the peer means, and to whom."""
        if frame.method is UNSET:
            return self._hear_answer(frame, stream)
        if frame.id is not UNSET:
            return Question(frame, self.amid(stream))
        if frame.method == CANCELLED:
            return self._hear_withdrawal(frame)
        if frame.method == PROGRESS:
            return self._hear_progress(frame, stream)
        if frame.method in TOLD:
            return self._hear_streamed(frame, stream)
        return self._hear_notice(frame, stream)

    def amid(self, stream: Stream) -> Errand | None:
        """Whose question opened this stream, if it is still open."""
        entry = self._open.get(stream) if stream else None
        return entry.errand if entry is not None else None

    def taken(self, asker_id: Id) -> Errand | None:
        """The question of the peer's that has this id, if it is still open."""
        return self._taken.get(asker_id)

    def withdraw(self, minted: int, reason: Raw | None = None) -> Frame | None:
        """Forget a question and word its cancellation; None if it is no longer open."""
        if self._end(minted) is None:
            return None
        told: dict[str, object] = {"requestId": minted}
        if reason is not None:
            told["reason"] = reason
        return jsonrpc.notification(CANCELLED, told)

    def drop(self, stream: Stream) -> Errand | None:
        """The stream ended; whose question is left without an answer?"""
        entry = self._end(stream) if stream else None
        return entry.errand if entry is not None else None

    def close(self) -> tuple[list[Errand], list[Errand]]:
        """Everything that was open: questions to the peer, and questions of the peer."""
        asked, taken = self.waiting, list(self._taken.values())
        for minted in list(self._open):
            self._end(minted)
        self._taken.clear()
        return asked, taken

    def _end(self, minted: int) -> _Open[Errand] | None:
        entry = self._open.pop(minted, None)
        if entry is not None and self.on_end is not None:
            self.on_end(entry.errand)
        return entry

    def _hear_answer(self, frame: Frame, stream: Stream) -> Heard[Errand]:
        minted = frame.id
        if type(minted) is not int or minted not in self._open:
            return Stray(f"an answer to nothing that is open: id {minted!r}")
        if stream is not UNKNOWN and stream != minted:
            return Stray(f"an answer to {minted} on another stream")
        entry = self._open.pop(minted)
        if self.on_end is not None:
            self.on_end(entry.errand)
        if entry.listens and frame.result is not UNSET:
            frame = _restore_end_of_listening(frame, entry.asker_id)
        return Answer(entry.errand, jsonrpc.with_id(frame, entry.asker_id))

    def _hear_withdrawal(self, frame: Frame) -> Heard[Errand]:
        params = _members_of(frame.params)
        named = jsonrpc.scalar(params.get("requestId"))
        if not isinstance(named, int | str) or isinstance(named, bool):
            return Stray("a cancellation that names no request")
        errand = self._taken.pop(named, None)
        if errand is None:
            return Stray(f"a cancellation of nothing that is open: id {named!r:.80}")
        return Withdrawal(errand, params.get("reason"))

    def _hear_progress(self, frame: Frame, stream: Stream) -> Heard[Errand]:
        """A minted token tells whose progress it is; an own one says less than its stream."""
        params = _members_of(frame.params)
        named = jsonrpc.scalar(params.get("progressToken"))
        entry = self._open.get(named) if type(named) is int else None
        if entry is not None and entry.token is not None and (not stream or stream == named):
            restored = jsonrpc.to_raw(params | {"progressToken": entry.token})
            return Notice(jsonrpc.with_params(frame, restored), entry.errand)
        beside = self._open.get(stream) if stream else None
        if stream is UNKNOWN or (beside is not None and beside.token is not None):
            return Stray("progress of nothing that is open")
        return self._hear_notice(frame, stream)

    def _hear_streamed(self, frame: Frame, stream: Stream) -> Heard[Errand]:
        """What names its call by an id; of none that is open, or amid another's, it is nobody's."""
        named = named_in(frame.params)
        entry = self._open.get(named) if type(named) is int else None
        is_its_own = entry is not None and (not stream or stream == named)
        return Notice(frame, entry.errand if entry is not None and is_its_own else None)

    def _hear_notice(self, frame: Frame, stream: Stream) -> Heard[Errand]:
        stamp = _subscription(frame) if stream is UNKNOWN else None
        named = stream if stamp is None else stamp
        entry = self._open.get(named) if named else None
        if stamp is not None and (entry is None or not entry.listens):
            # Told to everybody, it could meet a listener whose own id is the same number.
            return Stray("a notice for no subscription that is open")
        if entry is None:
            return Notice(frame, None)
        if entry.listens:
            frame = _restore_subscription(frame, entry.asker_id)
        return Notice(frame, entry.errand)


def _members_of(raw: object) -> dict[str, Raw]:
    """The members of an object; anything else that stands there has none and may pass."""
    if isinstance(raw, Raw) and bytes(memoryview(raw)[:1]) == b"{":
        return jsonrpc.members(raw)
    return {}


def _swap_token(params: Raw, minted: int) -> tuple[Raw, Raw | None]:
    """The parameters with the minted number as progress token, and the token that stood there."""
    plain = bytes(params)
    if b"progressToken" not in plain and BACKSLASH not in plain:
        # Most calls want no progress. An escape could spell the key, so it is looked at closely.
        return params, None
    found = _members_of(params)
    inside = _members_of(found.get("_meta"))
    token = inside.get("progressToken")
    if token is None:
        return params, None
    swapped: dict[str, object] = {**inside, "progressToken": minted}
    return jsonrpc.to_raw({**found, "_meta": swapped}), token


def _subscription(frame: Frame) -> int | None:
    """The minted id of the listen a notice says it belongs to: None if unsaid, 0 if unsayable."""
    meta = _members_of(_members_of(frame.params).get("_meta"))
    if SUBSCRIPTION_ID not in meta:
        return None
    named = jsonrpc.scalar(meta[SUBSCRIPTION_ID])
    return named if type(named) is int else 0


def _restore_end_of_listening(frame: Frame, asker_id: Id) -> Frame:
    """An answer that cannot be read is one all the same: whoever listened learns of the end."""
    try:
        return _restore_subscription(frame, asker_id)
    except MalformedMessage as error:
        return jsonrpc.failure(asker_id, UPSTREAM_FAILED, f"the answer is malformed: {error}")


def _restore_subscription(frame: Frame, asker_id: Id) -> Frame:
    """Stamp the listener's own id where the peer stamped the minted one."""
    body = frame.params if frame.result is UNSET else frame.result
    found = _members_of(body)
    meta = _members_of(found.get("_meta"))
    if SUBSCRIPTION_ID not in meta:
        return frame
    stamped = jsonrpc.to_raw({**found, "_meta": {**meta, SUBSCRIPTION_ID: asker_id}})
    if frame.result is UNSET:
        return jsonrpc.with_params(frame, stamped)
    return structs.replace(frame, result=stamped)
