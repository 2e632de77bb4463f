"""Keep-alive connections to HTTP servers, shared by all who send requests to them.

A request that finds an idle connection is one write and no task, future or timer; everything
else (opening, waiting, expiring) happens beside that way. Deadlines are the caller's: nothing
here gives up on a response that is slow. Redirects are passed on, never followed.
"""

import asyncio
import ssl
from dataclasses import replace

from comity.adapters.upstream.dialling import ChooseProxy, Dialler, Find, Proxy
from comity.adapters.upstream.lane import Lane, Load, PoolLimits
from comity.adapters.upstream.origin import Origin, header_line, request_head
from comity.adapters.upstream.sending import HeadSending, ResponseReader, Sending

__all__ = [
    "Origin",
    "Pool",
    "PoolLimits",
    "Proxy",
    "ResponseReader",
    "Sending",
    "header_line",
    "request_head",
]

_DEFAULT_LIMITS = PoolLimits()
_FAREWELL_SECONDS = 1.0
_BODY_NOT_EXPECTED = (b"GET ", b"DELETE ", b"HEAD ", b"OPTIONS ")


class Pool:
    """The connections of one process to all HTTP servers it speaks to."""

    def __init__(
        self,
        tls: ssl.SSLContext | None = None,
        limits: PoolLimits = _DEFAULT_LIMITS,
        choose_proxy: ChooseProxy | None = None,
        find: Find | None = None,
    ) -> None:
        if tls is not None:
            tls.set_alpn_protocols(["http/1.1"])
        self._tls = tls
        self._limits = limits
        self._choose_proxy = choose_proxy
        self._find = find
        self._lanes: dict[Origin, Lane] = {}
        self._sweeping: asyncio.TimerHandle | None = None
        self._closed = False

    def send(
        self,
        origin: Origin,
        head: bytes,
        body: bytes,
        reader: ResponseReader,
        *,
        may_repeat: bool = False,
    ) -> Sending:
        """Send one request; `head` is whole lines (see `request_head`), without a length.

        With `may_repeat` a request that a reused connection swallowed without a byte of answer
        is sent once more, on a fresh one; without it, it fails and its outcome is unknown.
        """
        lane = self._lanes.get(origin) or self._new_lane(origin)
        if self._choose_proxy is not None and origin.scheme == "http":
            proxy = self._choose_proxy(origin)
            head = head if proxy is None else proxy.absolute_form(origin, head)
        if body or not head.startswith(_BODY_NOT_EXPECTED):
            payload = b"%bcontent-length: %d\r\n\r\n%b" % (head, len(body), body)
            sending = Sending(lane, payload, reader, may_repeat)
        else:
            kind = HeadSending if head.startswith(b"HEAD ") else Sending
            sending = kind(lane, head + b"\r\n", reader, may_repeat)
        lane.dispatch(sending)
        return sending

    def like(self, find: Find) -> "Pool":
        """Another with the same bounds and proxies, whose connections `find` may refuse."""
        return Pool(self._tls, self._limits, self._choose_proxy, find)

    def loads(self) -> dict[Origin, Load]:
        """What each origin holds of us now."""
        return {origin: lane.load for origin, lane in self._lanes.items()}

    async def close(self) -> None:
        """Fail what is under way and let go of every connection; later requests fail."""
        self._closed = True
        if self._sweeping is not None:
            self._sweeping.cancel()
        leaving = [future for lane in self._lanes.values() for future in lane.close()]
        if leaving:
            await asyncio.wait(leaving, timeout=_FAREWELL_SECONDS)

    def _new_lane(self, origin: Origin) -> Lane:
        proxy = None if self._choose_proxy is None else self._choose_proxy(origin)
        way = Dialler(origin, self._tls, proxy)
        way = way if self._find is None else replace(way, find=self._find)
        lane = Lane(way, self._limits, self._closed)
        self._lanes[origin] = lane
        if self._sweeping is None and not self._closed:
            self._sweep_later()
        return lane

    def _sweep_later(self) -> None:
        # A connection is let go at the second sweep after its release: within the idle time.
        period = self._limits.idle_time.total_seconds() / 2
        self._sweeping = asyncio.get_running_loop().call_later(period, self._sweep)

    def _sweep(self) -> None:
        for lane in self._lanes.values():
            lane.expire()
        deserted = [origin for origin, lane in self._lanes.items() if lane.is_deserted]
        for origin in deserted:
            del self._lanes[origin]
        self._sweeping = None
        if self._lanes:
            self._sweep_later()
