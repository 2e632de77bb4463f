"""The WebSocket connection of a participant, reopened after a cut. (MCPx §6.2)"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from importlib.metadata import version
from typing import Final, Protocol, Self, override
from urllib.parse import urlencode, urlsplit, urlunsplit

import msgspec
from msgspec import Struct
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import (
    ConnectionClosed,
    InvalidHandshake,
    InvalidStatus,
    InvalidURI,
)

from comity.errors import (
    ACCESS_DENIED,
    INTERNAL_ERROR,
    NOTHING_HERE,
    RATE_LIMITED,
    UNAUTHENTICATED,
    UPSTREAM_DOWN,
    Fault,
    Misconfigured,
    Unavailable,
)
from comity.sdk.topics.envelopes import RECEIVED
from comity.toolkit.background import draw_delay
from comity.toolkit.resilience import RetrySchedule
from comity.topics.rules import DeliveryMode, is_topic

log = logging.getLogger(__name__)

REPLACED: Final = 4001
NOT_ENTITLED: Final = 4003
_POLICY: Final = 1008
_FOR_GOOD: Final = {
    REPLACED: "another connection of this participant replaced this one; join only once",
    NOT_ENTITLED: "this participant may not be in the topic any more; ask an operator of the topic",
    _POLICY: "the gateway removed this participant; send less, or ask an operator of the topic",
}
_WELCOME_WITHIN: Final = 30.0
_STEADY: Final = 10.0
"""After a connection of so many seconds, failures are counted from 1 again."""

_MAX_PAUSE: Final = timedelta(minutes=5)
_PASSING: Final = frozenset({408, 425, 429})
_FAULTS: Final[dict[int, tuple[Fault, str]]] = {
    401: (UNAUTHENTICATED, "send a token that the gateway knows"),
    403: (ACCESS_DENIED, "ask an operator to let you into the topic"),
    404: (NOTHING_HERE, "check the name of the topic, and whether you may know of it"),
    429: (RATE_LIMITED, "come back later"),
}

type Token = str | Callable[[], str]


@dataclass(frozen=True, slots=True)
class ParticipantAddress:
    """The address of a topic, the credentials, and the delivery mode."""

    url: str
    topic: str
    token: Token = field(default="", repr=False)
    mode: DeliveryMode = DeliveryMode.ALL
    alias: str = ""

    @property
    def uri(self) -> str:
        """The WebSocket URI. Raises Misconfigured."""
        parts = urlsplit(self.url)
        scheme = {"http": "ws", "https": "wss"}.get(parts.scheme, parts.scheme)
        if scheme not in ("ws", "wss") or not parts.hostname:
            raise Misconfigured(f"{self.url!r:.200} is no address: write it as https://host:port")
        if not is_topic(self.topic):
            raise Misconfigured(f"{self.topic!r:.80} is no topic: 1 to 64 of A-Z a-z 0-9 . _ -")
        path = parts.path.rstrip("/")
        wanted = {"topic": self.topic, "mode": self.mode}
        if self.alias:
            wanted["as"] = self.alias
        return urlunsplit((scheme, parts.netloc, path or "/ws", urlencode(wanted), ""))

    @property
    def headers(self) -> dict[str, str]:
        token = self.token if isinstance(self.token, str) else self.token()
        return {"Authorization": f"Bearer {token}"} if token else {}


class ParticipantListener(Protocol):
    """Receives the frames and the state changes of a connection."""

    def greeted(self, frame: bytes) -> bool:
        """Take the first frame of a connection; return whether it is a welcome."""
        ...

    def heard(self, frame: bytes) -> None: ...

    def cut(self, because: str) -> None: ...

    def back(self, attempts: int) -> None: ...

    def over(self, why: Unavailable) -> None: ...


class _DirectConnector(connect):
    """A connection that follows no redirect."""

    @override
    def process_redirect(self, exc: Exception) -> Exception | str:
        return exc


class ParticipantConnection:
    """Connects again after each cut, until the gateway refuses; use it in an `async with`."""

    def __init__(
        self, address: ParticipantAddress, hears: ParticipantListener, backoff: RetrySchedule
    ) -> None:
        self._address = address
        self._hears = hears
        self._backoff = backoff
        self._socket: ClientConnection | None = None
        self._is_open = asyncio.Event()
        self._problem = ""
        # Since the last cut, or since the beginning.
        self._attempts = 0
        self._was_cut = False
        self._running: asyncio.Task[None] | None = None
        # Why there will be no connection any more; None while there may be one.
        self.ended: Unavailable | None = None

    async def __aenter__(self) -> Self:
        # An invalid address raises before the first attempt.
        assert self._address.uri
        self._running = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait({self._running})
        if self.ended is None:
            self._end(Unavailable("we have left the topic", NOTHING_HERE))

    @property
    def is_open(self) -> bool:
        return self._is_open.is_set()

    async def send(self, data: bytes, within: timedelta) -> None:
        """Send it, once there is a connection. Raises Unavailable."""
        try:
            async with asyncio.timeout(within.total_seconds()):
                await self._is_open.wait()
                if self._socket is None:
                    assert self.ended is not None
                    raise Unavailable(str(self.ended), self.ended.fault)
                await self._socket.send(data, text=True)
        except ConnectionClosed:
            reason = "the connection broke while this was sent; say it again if it matters"
            raise Unavailable(reason, UPSTREAM_DOWN) from None
        except TimeoutError:
            reason = "there is no connection to the gateway just now; it is being tried again"
            raise Unavailable(reason, UPSTREAM_DOWN) from None

    async def opened(self, within: timedelta) -> None:
        """Wait for the first connection. Raises Unavailable."""
        try:
            async with asyncio.timeout(within.total_seconds()):
                await self._is_open.wait()
        except TimeoutError:
            raise Unavailable(self._problem or "no welcome in time", UPSTREAM_DOWN) from None
        if self.ended is not None:
            raise Unavailable(str(self.ended), self.ended.fault)

    async def _run(self) -> None:
        try:
            await self._stay()
        except Exception:
            log.exception("the connection to a topic cannot be kept")
            self._end(Unavailable("the connection failed; the log says why", INTERNAL_ERROR))

    async def _stay(self) -> None:
        """Stay connected, until that is over for good; `ended` says why."""
        clock = asyncio.get_running_loop().time
        failures = 0
        while True:
            began, asked = clock(), timedelta()
            try:
                await self._once()
            except Unavailable as problem:
                self._problem = str(problem)
                if not problem.fault.retryable:
                    self._end(problem)
                    return
                asked = min(problem.retry_after or timedelta(), _MAX_PAUSE)
            # A client also waits after a cut: all other clients were cut at the same time.
            failures = 1 if clock() - began >= _STEADY else failures + 1
            pause = max(draw_delay(self._backoff, failures), asked)
            await asyncio.sleep(pause.total_seconds())

    def _end(self, error: Unavailable) -> None:
        """End for good: waiting callers and the listener get the error."""
        self.ended = error
        self._is_open.set()
        self._hears.over(error)

    async def _once(self) -> None:
        """One connection from its welcome to its cut."""
        self._attempts += 1
        socket = await _opened(self._address)
        try:
            await self._welcomed(socket)
            self._socket = socket
            self._is_open.set()
            if self._was_cut:
                self._hears.back(self._attempts)
            while True:
                self._hears.heard(await socket.recv(decode=False))
        except ConnectionClosed:
            pass
        finally:
            self._socket = None
            self._is_open.clear()
            await socket.close()
        _raise_for_good(socket.close_code, socket.close_reason)
        self._was_cut, self._attempts = True, 0
        self._hears.cut(f"the connection was cut ({socket.close_code})")

    async def _welcomed(self, socket: ClientConnection) -> None:
        try:
            async with asyncio.timeout(_WELCOME_WITHIN):
                frame = await socket.recv(decode=False)
        except TimeoutError:
            raise Unavailable("the gateway sent no welcome", UPSTREAM_DOWN) from None
        except ConnectionClosed as closed:
            if closed.rcvd is not None:
                _raise_for_good(closed.rcvd.code, closed.rcvd.reason)
            raise Unavailable("the gateway closed before its welcome", UPSTREAM_DOWN) from None
        if not self._hears.greeted(frame):
            reason = "the first message is no welcome: the address is no gateway of mcpx/v0.1"
            raise Unavailable(reason, NOTHING_HERE)


def _raise_for_good(code: int | None, reason: str | None) -> None:
    advice = _FOR_GOOD.get(code or 0)
    if advice is not None:
        raise Unavailable(f"{reason or 'closed'} ({code}): {advice}", ACCESS_DENIED)


async def _opened(address: ParticipantAddress) -> ClientConnection:
    """Open a connection. Raises Unavailable, with a retryable fault if a retry may help."""
    try:
        return await _DirectConnector(
            address.uri,
            additional_headers=address.headers,
            user_agent_header=f"comity/{version('comity')}",
            compression=None,
            proxy=None,
            max_size=RECEIVED.envelope_bytes,
            close_timeout=5,
        )
    except InvalidStatus as refused:
        raise _refusal(refused) from None
    except InvalidURI as problem:
        raise Misconfigured(f"{problem}") from None
    except (OSError, InvalidHandshake, TimeoutError, EOFError) as problem:
        reason = f"the gateway at {address.url:.200} cannot be reached: {problem!s:.200}"
        raise Unavailable(reason, UPSTREAM_DOWN) from None


def _refusal(refused: InvalidStatus) -> Unavailable:
    status = refused.response.status_code
    fault, advice = _FAULTS.get(status, (NOTHING_HERE, "check the address of the gateway"))
    if status >= 500 or status in _PASSING:
        fault = fault if fault.retryable else UPSTREAM_DOWN
    said = _words_of(bytes(refused.response.body or b""))[:300]
    shown = f": {said}" if said.isprintable() and said else ""
    after = refused.response.headers.get("Retry-After", "")
    return Unavailable(
        f"the gateway refused with HTTP {status}{shown}; {advice}",
        fault,
        timedelta(seconds=int(after)) if after.isdecimal() and len(after) < 6 else None,
    )


def _words_of(body: bytes) -> str:
    """The message of a refusal, which is JSON or plain text."""
    try:
        told = msgspec.json.decode(body, type=_RefusalBody).error
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return body.decode(errors="replace")
    return told if isinstance(told, str) else told.message


class _RefusalReason(Struct):
    message: str


class _RefusalBody(Struct):
    error: _RefusalReason | str
