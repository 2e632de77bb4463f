"""Hints and samples between the nodes, so that the console works through any of them."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Final

import msgspec

from comity.approvals.call_results import ApprovedCallResult, CallResults
from comity.cluster.bus import Bus, BusMessage
from comity.console.samples import TrafficSample, TrafficSampler
from comity.console.stream import (
    BATCH_INTERVAL_SECONDS,
    ChangeHint,
    HintBuffer,
    HintStream,
    HintTopic,
)
from comity.errors import Unavailable

MAX_HINTS_AT_ONCE: Final = 256
_STORE_TOPICS: Final = frozenset(
    {
        HintTopic.APPROVALS,
        HintTopic.GRANTS,
        HintTopic.PRINCIPALS,
        HintTopic.KEYS,
        HintTopic.ACCOUNTS,
        HintTopic.NODES,
        HintTopic.METRICS,
    }
)
"""Topics that every node hears of by itself, through the store or the heartbeats."""


class _ConsoleNews(msgspec.Struct, frozen=True, array_like=True):
    """One message between nodes: some hints, a sample, or the result of an approved call."""

    hints: tuple[tuple[HintTopic, str], ...] = ()
    sample: TrafficSample | None = None
    result: ApprovedCallResult | None = None


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(_ConsoleNews).decode


class ConsoleBus:
    """Sends the hints and samples of this node to the others, and receives theirs."""

    def __init__(
        self,
        bus: Bus,
        prefix: str,
        stream: HintStream,
        sampler: TrafficSampler,
        results: CallResults,
    ) -> None:
        self._bus = bus
        self._results = results
        self._subject = f"{prefix}.console"
        self._stream = stream
        self._sampler = sampler
        self._outgoing = HintBuffer(MAX_HINTS_AT_ONCE)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Exchange news until the context ends."""
        subscription = await self._bus.subscribe(self._subject, self._on_message)
        self._sampler.watchers.append(self._send_sample)
        self._results.watchers.append(self._send_result)
        task = asyncio.ensure_future(self._send_hints())
        try:
            yield
        finally:
            task.cancel()
            self._sampler.watchers.remove(self._send_sample)
            self._results.watchers.remove(self._send_result)
            await subscription.close()

    def on_hint(self, hint: ChangeHint) -> None:
        """Tell the other nodes about a change that only this node knows."""
        if hint.topic not in _STORE_TOPICS:
            self._outgoing.add(hint)

    async def _send_hints(self) -> None:
        while True:
            await self._outgoing.changed.wait()
            hints = tuple((hint.topic, hint.id) for hint in self._outgoing.take())
            self._publish(_ConsoleNews(hints))
            await asyncio.sleep(BATCH_INTERVAL_SECONDS)

    def _send_sample(self, sample: TrafficSample) -> None:
        self._publish(_ConsoleNews(sample=sample))

    def _send_result(self, result: ApprovedCallResult) -> None:
        # The person who approved the call may be at any node.
        self._publish(_ConsoleNews(result=result))

    def _publish(self, news: _ConsoleNews) -> None:
        # A reader polls what it shows, so a lost hint only delays it.
        with contextlib.suppress(Unavailable):
            self._bus.publish(self._subject, _encode(news))

    def _on_message(self, message: BusMessage) -> None:
        try:
            news = _decode(message.data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return
        if news.sample is not None:
            self._sampler.keep(news.sample)
        if news.result is not None:
            self._results.keep(news.result)
        for topic, id in news.hints[:MAX_HINTS_AT_ONCE]:
            self._stream.publish(ChangeHint(topic, id))
