"""Leases in a bucket of JetStream: written by whoever names the revision it saw before.

Rule 1: no two clocks are compared. A holder counts from before it sent what made or renewed its
        lease; any other from when it first saw that revision, which was later. So the holder
        believes it lost the lease before anybody else does.
Rule 2: the token is the revision at which the lease was made; renewals carry it on. A bucket that
        has to be made anew begins above every revision of the one before.
Rule 3: what is not answered in two seconds is unknown, and said to be.
Rule 4: what a node writes is sealed, with a number above that of the value before. A value without
        a seal, or one written again, neither ends a lease nor makes it last: the last one that was
        sealed counts, and its holder writes over the other.
"""

import asyncio
import hmac
import logging
import math
import re
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, Final, NamedTuple, cast

import msgspec
from nats import errors
from nats.js import JetStreamContext, api
from nats.js.errors import APIError, BadRequestError, NotFoundError

from comity.adapters.nats.bus import NatsBus
from comity.adapters.nats.seals import derived
from comity.ports.clustering import Lease
from comity.wire.errors import UPSTREAM_DOWN, MalformedMessage, Unavailable

log = logging.getLogger(__name__)

LIFETIME: Final = timedelta(seconds=10)
LONGEST_NAME: Final = 256
_SECONDS: Final = 2.0
_KEPT_SECONDS: Final = 86_400.0
"""After that nobody is remembered who did not renew. It only tidies up: nobody waits for it."""
_LONGER: Final = 1.05
"""Whoever waits for a lease to end waits a little longer, for clocks that run unevenly."""
_SAFE: Final = re.compile(rb"[A-Za-z0-9_-]")
_MOVED_ON: Final = (10071, 10164)
_NAME_IN_USE: Final = 10058
_NO_ANSWER: Final = (errors.Error, OSError, ValueError, LookupError, TypeError)
"""Also where an answer is none of JetStream's: nats-py takes whatever comes."""
_NO_BUCKET: Final = 10059
_UNSEALED: Final = -1


class _Value(msgspec.Struct):
    holder: str
    """Empty where it was given up."""
    token: int = 0
    """None yet in what makes a lease: it is the revision that this gets."""
    number: int = 0
    seal: str = ""


class _Entry(NamedTuple):
    """What the bucket has, by the last value that was sealed; empty where nobody holds it."""

    revision: int
    holder: str = ""
    token: int = 0
    number: int = 0
    # The revision of that value: another one than the bucket's where somebody else wrote there.
    sealed_at: int = 0


class _Own(NamedTuple):
    """A lease taken here, and until when it is certain."""

    lease: Lease
    revision: int
    until: float


class _Seen(NamedTuple):
    revision: int
    since: float


class NatsLeases:
    def __init__(
        self,
        bus: NatsBus,
        lifetime: timedelta = LIFETIME,
        replicas: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._bus = bus
        self._lifetime = lifetime
        self._seconds = lifetime.total_seconds()
        self._replicas = bus.addresses.replicas if replicas is None else replicas
        self._clock = clock
        self.bucket = f"comity-leases-{bus.addresses.deployment}"
        self.stream = f"KV_{self.bucket}"
        self._is_made = False
        self._key = derived(bus.secret, b"leases")
        self._own: dict[str, _Own] = {}
        self._seen: dict[str, _Seen] = {}
        self._last: dict[str, _Entry] = {}
        self._has_told = False

    @property
    def lifetime(self) -> timedelta:
        return self._lifetime

    async def take(self, name: str, holder: str) -> Lease | None:
        """Whoever has it, and asks again, gets what it has."""
        async with self._asking() as js:
            entry = await self._read(js, name)
            own = self._own.get(name)
            if own is not None and _is_of(entry, own.lease) and own.lease.holder == holder:
                if self._clock() < own.until:
                    return own.lease
            elif not self._is_free(name, entry):
                return None
            sent = self._clock()
            revision = await self._write(js, name, _Value(holder), entry.revision)
        if revision is None:
            return None
        lease = Lease(name, holder, revision)
        self._own[name] = _Own(lease, revision, sent + self._seconds)
        self._seen.pop(name, None)
        return lease

    async def renew(self, lease: Lease) -> bool:
        own = self._own.get(lease.name)
        if own is None or own.lease != lease or self._clock() >= own.until:
            return False
        sent = self._clock()
        async with self._asking() as js:
            revision = await self._written_over(js, own, _Value(lease.holder, lease.token))
        if revision is None:
            self._own.pop(lease.name, None)
            return False
        until = sent + self._seconds
        self._own[lease.name] = _Own(lease, revision, until)
        return self._clock() < until

    async def give_up(self, lease: Lease) -> None:
        own = self._own.get(lease.name)
        if own is None or own.lease != lease:
            return
        # Whether or not it can be told, it is held here no longer.
        self._own[lease.name] = own._replace(until=-math.inf)
        async with self._asking() as js:
            await self._written_over(js, own, _Value(""))
        self._own.pop(lease.name, None)

    async def holder(self, name: str) -> Lease | None:
        async with self._asking() as js:
            entry = await self._read(js, name)
        if self._is_free(name, entry) or entry.sealed_at == _UNSEALED:
            return None
        own = self._own.get(name)
        if own is not None and _is_of(entry, own.lease) and self._clock() >= own.until:
            return None
        return Lease(name, entry.holder, entry.token)

    def _is_free(self, name: str, entry: _Entry) -> bool:
        """It is, once the same sealed revision has been there for a whole lifetime."""
        if not entry.holder and entry.sealed_at != _UNSEALED:
            return True
        now = self._clock()
        seen = self._seen.get(name)
        if seen is None or seen.revision != entry.sealed_at:
            self._seen[name] = _Seen(entry.sealed_at, now)
            return False
        return now - seen.since >= self._seconds * _LONGER

    async def _written_over(self, js: JetStreamContext, own: _Own, value: _Value) -> int | None:
        """None where somebody else has it. A renewal whose answer was lost may have counted."""
        name = own.lease.name
        revision = await self._write(js, name, value, own.revision)
        if revision is None:
            entry = await self._read(js, name)
            if _is_of(entry, own.lease):
                revision = await self._write(js, name, value, entry.revision)
        return revision

    async def _read(self, js: JetStreamContext, name: str) -> _Entry:
        """From who leads the bucket. An old answer does no harm: writing on it fails."""
        try:
            found = await js.get_last_msg(self.stream, self._subject(name))
        except NotFoundError as missing:
            if missing.err_code == _NO_BUCKET:
                raise
            return _Entry(0)
        return self._opened(name, found.seq or 0, found.data or b"")

    def _opened(self, name: str, revision: int, data: bytes) -> _Entry:
        """What a value says, if a node sealed it after the last one that is known here."""
        last = self._last.get(name, _Entry(0, sealed_at=_UNSEALED))
        if revision == last.sealed_at:
            return last
        try:
            value = msgspec.json.decode(data, type=_Value)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            value = _Value("")
        is_sealed = hmac.compare_digest(value.seal.encode(), self._seal(name, value).encode())
        if not is_sealed or value.number <= last.number:
            self._tell_of_strangers()
            return last._replace(revision=revision)
        token = value.token or revision
        entry = _Entry(revision, value.holder, token, value.number, revision)
        self._last[name] = entry
        return entry

    def _seal(self, name: str, value: _Value) -> str:
        said = msgspec.json.encode([name, value.holder, value.token, value.number])
        return derived(self._key, said).hex()

    def _tell_of_strangers(self) -> None:
        if not self._has_told:
            log.warning(
                "what stands in %s was not written by a node of this cluster. Give each node the"
                " same pepper, and let nobody else write there",
                self.bucket,
            )
        self._has_told = True

    async def _write(
        self, js: JetStreamContext, name: str, value: _Value, after: int
    ) -> int | None:
        """The new revision; None where it is no longer `after`."""
        headers = {str(api.Header.EXPECTED_LAST_SUBJECT_SEQUENCE.value): str(after)}
        last = self._last.get(name, _Entry(0))
        # Another node may know a higher number of a value that the bucket no longer has. It began
        # as a time too, and has grown more slowly.
        least = 0 if after else time.time_ns() // 1_000_000
        value.number = max(least, last.number + 1)
        value.seal = self._seal(name, value)
        data = msgspec.json.encode(value)
        try:
            written = await js.publish(
                self._subject(name), data, headers=headers, stream=self.stream
            )
        except APIError as refused:
            if refused.err_code in _MOVED_ON:
                return None
            raise
        self._opened(name, written.seq, data)
        return written.seq

    def _subject(self, name: str) -> str:
        if not 0 < len(name) <= LONGEST_NAME:
            raise MalformedMessage("a lease's name has 1 to 256 characters")
        letters = (bytes((each,)) for each in name.encode())
        key = "".join(c.decode() if _SAFE.match(c) else f"={c.hex()}" for c in letters)
        return f"$KV.{self.bucket}.{key}"

    @asynccontextmanager
    async def _asking(self) -> AsyncGenerator[JetStreamContext]:
        js = JetStreamContext(self._bus.link, timeout=_SECONDS)
        try:
            async with asyncio.timeout(_SECONDS):
                await self._make(js)
                yield js
        except TimeoutError:
            raise _unknown("NATS did not answer in time") from None
        except MalformedMessage:
            raise
        except _NO_ANSWER as failed:
            # The bucket may be what is missing, so it is looked for before anything else is asked.
            self._is_made = False
            raise _unknown(str(failed)) from failed

    async def _make(self, js: JetStreamContext) -> None:
        """The bucket, where it is not there, and as safe as it should be."""
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
            log.info("leases in NATS are kept %d times from now on", self._replicas)
        self._is_made = True

    async def _made(self, js: JetStreamContext) -> api.StreamInfo:
        wanted = api.StreamConfig(
            name=self.stream,
            description="Leases of a Comity deployment",
            subjects=[f"$KV.{self.bucket}.>"],
            storage=api.StorageType.FILE,
            num_replicas=self._replicas,
            max_msgs_per_subject=1,
            max_age=_KEPT_SECONDS,
            discard=api.DiscardPolicy.NEW,
            allow_rollup_hdrs=True,
            deny_delete=True,
            first_seq=time.time_ns() // 1_000_000,
        )
        try:
            return await cast("Any", js).add_stream(wanted)
        except BadRequestError as refused:
            if refused.err_code != _NAME_IN_USE:
                raise
        # Another node was quicker.
        return await js.stream_info(self.stream)


def _is_of(entry: _Entry, lease: Lease) -> bool:
    return entry.token == lease.token and entry.holder == lease.holder


def _unknown(because: str) -> Unavailable:
    return Unavailable(f"who holds a lease cannot be known now: {because}", UPSTREAM_DOWN)
