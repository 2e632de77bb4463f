"""One JSON-RPC conversation: request ids, open requests, progress and cancellation."""

from collections.abc import Callable

from msgspec import UNSET, Raw, Struct, structs

from comity.errors import EXHAUSTED, INVALID_REQUEST, UPSTREAM_FAILED, MalformedMessage
from comity.mcp import jsonrpc
from comity.mcp.framing import BACKSLASH
from comity.mcp.jsonrpc import Frame, Id
from comity.mcp.mgp_streaming import STREAM_NOTIFICATIONS, request_id_in
from comity.mcp.protocol import CANCELLED, LISTEN, PROGRESS, SUBSCRIPTION_ID, UNKNOWN, Stream


class PeerResponse[Errand](Struct):
    """A response of the peer. `frame` has the original id of the request again."""

    errand: Errand
    frame: Frame


class PeerRequest[Errand](Struct):
    """A request of the peer. `amid` is the errand on whose stream it came, if known."""

    frame: Frame
    amid: Errand | None


class PeerNotification[Errand](Struct):
    """A notification of the peer. `amid` is the errand that it belongs to, if known."""

    frame: Frame
    amid: Errand | None


class PeerCancellation[Errand](Struct):
    """A cancellation by the peer of its own request."""

    errand: Errand
    reason: Raw | None


class UnmatchedMessage(Struct):
    """A message that matches no open request. It is only counted."""

    because: str


type Heard[Errand] = (
    PeerResponse[Errand]
    | PeerRequest[Errand]
    | PeerNotification[Errand]
    | PeerCancellation[Errand]
    | UnmatchedMessage
)


class _OpenRequest[Errand](Struct):
    errand: Errand
    asker_id: Id
    token: Raw | None
    listens: bool


class Conversation[Errand]:
    """The open requests between Comity and one peer. An errand is an object of the caller."""

    __slots__ = ("_limit", "_next", "_open", "_taken", "is_open", "on_end")

    def __init__(self, limit: int = 4096) -> None:
        self._next = 0
        self._limit = limit
        self._open: dict[int, _OpenRequest[Errand]] = {}
        # Tells whether the request that opened a stream has no response yet. It runs for each call.
        self.is_open: Callable[[Stream], bool] = self._open.__contains__
        self._taken: dict[Id, Errand] = {}
        # Called when the peer can send nothing more for an errand, before the errand gets its
        # response.
        self.on_end: Callable[[Errand], None] | None = None

    def __len__(self) -> int:
        return len(self._open) + len(self._taken)

    @property
    def pending_requests(self) -> list[Errand]:
        """The errands whose requests to the peer have no response yet."""
        return [entry.errand for entry in self._open.values()]

    def register_request(self, frame: Frame, errand: Errand, *, mint_token: bool = False) -> Frame:
        """Register a request and return it under a minted id, and a minted token with `mint_token`.

        Raises MalformedMessage if too many requests are open, or if the frame is not a request.
        """
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
        self._open[minted] = _OpenRequest(errand, asker_id, token, method == LISTEN)
        return jsonrpc.with_id(frame, minted)

    def register_peer_request(self, asker_id: Id, errand: Errand) -> None:
        """Register a request of the peer until `settle`. Raises MalformedMessage for a used id."""
        if asker_id in self._taken:
            raise MalformedMessage(f"id {asker_id!r} is already in use", INVALID_REQUEST)
        if len(self._taken) >= self._limit:
            raise MalformedMessage("too many calls are open at once; wait for some", EXHAUSTED)
        self._taken[asker_id] = errand

    def settle(self, asker_id: Id) -> None:
        """Forget a request of the peer that was answered, or that will get no response."""
        self._taken.pop(asker_id, None)

    def classify(self, frame: Frame, stream: Stream) -> Heard[Errand]:
        """Classify a message from the peer, and find the errand that it belongs to."""
        if frame.method is UNSET:
            return self.match_answer(frame, stream)
        if frame.id is not UNSET:
            return PeerRequest(frame, self.find_stream_owner(stream))
        if frame.method == CANCELLED:
            return self._hear_withdrawal(frame)
        if frame.method == PROGRESS:
            return self._hear_progress(frame, stream)
        if frame.method in STREAM_NOTIFICATIONS:
            return self._classify_streamed(frame, stream)
        return self._hear_notice(frame, stream)

    def find_stream_owner(self, stream: Stream) -> Errand | None:
        """Return the errand whose request opened this stream, if it is still open."""
        entry = self._open.get(stream) if stream else None
        return entry.errand if entry is not None else None

    def find_peer_request(self, asker_id: Id) -> Errand | None:
        """Return the errand of the peer's request with this id, if it is still open."""
        return self._taken.get(asker_id)

    def withdraw(self, minted: int, reason: Raw | None = None) -> Frame | None:
        """Forget a request and return its cancellation, or None if it is no longer open."""
        if self._end(minted) is None:
            return None
        told: dict[str, object] = {"requestId": minted}
        if reason is not None:
            told["reason"] = reason
        return jsonrpc.make_notification(CANCELLED, told)

    def drop(self, stream: Stream) -> Errand | None:
        """Forget the request of a stream that ended, and return its errand."""
        entry = self._end(stream) if stream else None
        return entry.errand if entry is not None else None

    def close(self) -> tuple[list[Errand], list[Errand]]:
        """Forget all open requests, and return the errands to the peer and those of the peer."""
        asked, taken = self.pending_requests, list(self._taken.values())
        for minted in list(self._open):
            self._end(minted)
        self._taken.clear()
        return asked, taken

    def _end(self, minted: int) -> _OpenRequest[Errand] | None:
        entry = self._open.pop(minted, None)
        if entry is not None and self.on_end is not None:
            self.on_end(entry.errand)
        return entry

    def match_answer(self, frame: Frame, stream: Stream) -> PeerResponse[Errand] | UnmatchedMessage:
        """Find the errand that a response belongs to."""
        minted = frame.id
        if type(minted) is not int or minted not in self._open:
            return UnmatchedMessage(f"an answer to nothing that is open: id {minted!r}")
        if stream is not UNKNOWN and stream != minted:
            return UnmatchedMessage(f"an answer to {minted} on another stream")
        entry = self._open.pop(minted)
        if self.on_end is not None:
            self.on_end(entry.errand)
        if entry.listens and frame.result is not UNSET:
            frame = _restore_end_of_listening(frame, entry.asker_id)
        return PeerResponse(entry.errand, jsonrpc.with_id(frame, entry.asker_id))

    def _hear_withdrawal(self, frame: Frame) -> Heard[Errand]:
        params = _members_of(frame.params)
        named = jsonrpc.decode_scalar(params.get("requestId"))
        if not isinstance(named, int | str) or isinstance(named, bool):
            return UnmatchedMessage("a cancellation that names no request")
        errand = self._taken.pop(named, None)
        if errand is None:
            return UnmatchedMessage(f"a cancellation of nothing that is open: id {named!r:.80}")
        return PeerCancellation(errand, params.get("reason"))

    def _hear_progress(self, frame: Frame, stream: Stream) -> Heard[Errand]:
        """Assign progress by its minted token. A token of the peer counts less than its stream."""
        params = _members_of(frame.params)
        named = jsonrpc.decode_scalar(params.get("progressToken"))
        entry = self._open.get(named) if type(named) is int else None
        if entry is not None and entry.token is not None and (not stream or stream == named):
            restored = jsonrpc.to_raw(params | {"progressToken": entry.token})
            return PeerNotification(jsonrpc.with_params(frame, restored), entry.errand)
        beside = self._open.get(stream) if stream else None
        if stream is UNKNOWN or (beside is not None and beside.token is not None):
            return UnmatchedMessage("progress of nothing that is open")
        return self._hear_notice(frame, stream)

    def _classify_streamed(self, frame: Frame, stream: Stream) -> Heard[Errand]:
        """Assign a notification that names its call by id.

        It has no errand if that call is not open, or if it came on the stream of another call.
        """
        named = request_id_in(frame.params)
        entry = self._open.get(named) if type(named) is int else None
        is_its_own = entry is not None and (not stream or stream == named)
        return PeerNotification(frame, entry.errand if entry is not None and is_its_own else None)

    def _hear_notice(self, frame: Frame, stream: Stream) -> Heard[Errand]:
        stamp = _subscription(frame) if stream is UNKNOWN else None
        named = stream if stamp is None else stamp
        entry = self._open.get(named) if named else None
        if stamp is not None and (entry is None or not entry.listens):
            # Forwarded to all listeners, it could match a listener whose own id is the same number.
            return UnmatchedMessage("a notice for no subscription that is open")
        if entry is None:
            return PeerNotification(frame, None)
        if entry.listens:
            frame = _restore_subscription(frame, entry.asker_id)
        return PeerNotification(frame, entry.errand)


def _members_of(raw: object) -> dict[str, Raw]:
    """Return the members of an object, and none for any other value."""
    if isinstance(raw, Raw) and bytes(memoryview(raw)[:1]) == b"{":
        return jsonrpc.decode_members(raw)
    return {}


def _swap_token(params: Raw, minted: int) -> tuple[Raw, Raw | None]:
    """Return the parameters with the minted progress token, and the original token."""
    plain = bytes(params)
    if b"progressToken" not in plain and BACKSLASH not in plain:
        # Most calls want no progress. An escape could hide the key, so such parameters are decoded.
        return params, None
    found = _members_of(params)
    inside = _members_of(found.get("_meta"))
    token = inside.get("progressToken")
    if token is None:
        return params, None
    swapped: dict[str, object] = {**inside, "progressToken": minted}
    return jsonrpc.to_raw({**found, "_meta": swapped}), token


def _subscription(frame: Frame) -> int | None:
    """Return the minted id of the subscription that a notification names.

    Returns None if it names none, and 0 if the id is not an integer.
    """
    meta = _members_of(_members_of(frame.params).get("_meta"))
    if SUBSCRIPTION_ID not in meta:
        return None
    named = jsonrpc.decode_scalar(meta[SUBSCRIPTION_ID])
    return named if type(named) is int else 0


def _restore_end_of_listening(frame: Frame, asker_id: Id) -> Frame:
    """Restore the subscription id. A malformed response becomes an error, so that the listener

    learns of the end.
    """
    try:
        return _restore_subscription(frame, asker_id)
    except MalformedMessage as error:
        return jsonrpc.make_error(asker_id, UPSTREAM_FAILED, f"the answer is malformed: {error}")


def _restore_subscription(frame: Frame, asker_id: Id) -> Frame:
    """Replace the minted subscription id by the listener's own id."""
    body = frame.params if frame.result is UNSET else frame.result
    found = _members_of(body)
    meta = _members_of(found.get("_meta"))
    if SUBSCRIPTION_ID not in meta:
        return frame
    stamped = jsonrpc.to_raw({**found, "_meta": {**meta, SUBSCRIPTION_ID: asker_id}})
    if frame.result is UNSET:
        return jsonrpc.with_params(frame, stamped)
    return structs.replace(frame, result=stamped)
