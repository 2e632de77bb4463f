"""Which pushes were there lately, by JetStream's message ids: one stream, kept as often as leases.

Rule 1: a push is published under its key; JetStream says whether one was within the window.
Rule 2: the messages stay as long as the window, for by these JetStream knows them after a restart.
Rule 3: what is not answered in two seconds is unknown, and said to be.
"""

import asyncio
import logging
from datetime import timedelta
from typing import Any, Final, cast

from nats import errors
from nats.js import JetStreamContext, api
from nats.js.errors import BadRequestError, NotFoundError

from comity.adapters.nats.bus import NatsBus
from comity.adapters.nats.seals import derived
from comity.wire.errors import UPSTREAM_DOWN, Unavailable

log = logging.getLogger(__name__)

WINDOW: Final = timedelta(minutes=10)
MOST_KEPT: Final = 1_000_000
_SECONDS: Final = 2.0
_NAME_IN_USE: Final = 10058
_NO_ANSWER: Final = (errors.Error, OSError, ValueError, LookupError, TypeError)
"""Also where an answer is none of JetStream's: nats-py takes whatever comes."""


class NatsFirsts:
    def __init__(
        self, bus: NatsBus, window: timedelta = WINDOW, replicas: int | None = None
    ) -> None:
        self._bus = bus
        self._window = window.total_seconds()
        self._replicas = bus.addresses.replicas if replicas is None else replicas
        self.stream = f"comity-pushes-{bus.addresses.deployment}"
        self._subject = f"{bus.addresses.deployment}.pushes"
        self._key = derived(bus.secret, b"pushes")
        self._is_made = False

    async def is_first(self, key: str) -> bool:
        # Nobody else can name a push before it is there, and have it taken for a repeat.
        id = derived(self._key, key.encode(errors="surrogatepass")).hex()
        headers = {str(api.Header.MSG_ID.value): id}
        js = JetStreamContext(self._bus.link, timeout=_SECONDS)
        try:
            async with asyncio.timeout(_SECONDS):
                await self._make(js)
                written = await js.publish(self._subject, b"", headers=headers, stream=self.stream)
        except TimeoutError:
            raise _unknown("NATS did not answer in time") from None
        except _NO_ANSWER as failed:
            # The stream may be what is missing, so it is looked for before anything else is asked.
            self._is_made = False
            raise _unknown(str(failed)) from failed
        return not written.duplicate

    async def _make(self, js: JetStreamContext) -> None:
        """The stream, where it is not there, and as safe as it should be."""
        if self._is_made:
            return
        try:
            told = await js.stream_info(self.stream)
        except NotFoundError:
            told = await self._made(js)
        config = told.config
        if (config.num_replicas or 1) < self._replicas:
            config.num_replicas = self._replicas
            await cast("Any", js).update_stream(config)
            log.info("what was pushed lately is kept in NATS %d times", self._replicas)
        self._is_made = True

    async def _made(self, js: JetStreamContext) -> api.StreamInfo:
        wanted = api.StreamConfig(
            name=self.stream,
            description="Pushes of a Comity deployment that were there lately",
            subjects=[self._subject],
            storage=api.StorageType.FILE,
            num_replicas=self._replicas,
            max_age=self._window,
            max_msgs=MOST_KEPT,
            discard=api.DiscardPolicy.OLD,
            duplicate_window=self._window,
        )
        try:
            return await cast("Any", js).add_stream(wanted)
        except BadRequestError as refused:
            if refused.err_code != _NAME_IN_USE:
                raise
        # Another node was quicker.
        return await js.stream_info(self.stream)


def _unknown(because: str) -> Unavailable:
    return Unavailable(f"whether it was pushed before cannot be known: {because}", UPSTREAM_DOWN)
