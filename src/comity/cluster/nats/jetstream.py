"""Leases and first-seen marks on JetStream."""

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

from comity.cluster.bus import Lease
from comity.cluster.nats.bus import NatsBus
from comity.cluster.nats.seals import derive_key
from comity.errors import UPSTREAM_DOWN, MalformedMessage, Unavailable

log = logging.getLogger(__name__)

LIFETIME: Final = timedelta(seconds=10)
MAX_NAME_LENGTH: Final = 256
_SECONDS: Final = 2.0
_STREAM_RETENTION_SECONDS: Final = 86_400.0
"""After this time JetStream deletes a value that was not renewed. This only saves space."""
_LONGER: Final = 1.05
"""A node waits a little longer than a lifetime, because clocks run unevenly."""
_SAFE: Final = re.compile(rb"[A-Za-z0-9_-]")
_MOVED_ON: Final = (10071, 10164)
"""The error codes of a write whose expected revision is not the last one."""
_NAME_IN_USE: Final = 10058
_REQUEST_ERRORS: Final = (errors.Error, OSError, ValueError, LookupError, TypeError)
"""Includes errors of answers that are not from JetStream: nats-py accepts any message."""
_STREAM_NOT_FOUND: Final = 10059
_UNSEALED: Final = -1


class _LeaseValue(msgspec.Struct):
    holder: str
    """Empty if the lease was given up."""
    token: int = 0
    """Zero in the value that creates a lease: its token is the revision of that value."""
    number: int = 0
    seal: str = ""


class _LeaseEntry(NamedTuple):
    """The last sealed value of a lease in the bucket. `holder` is empty if no node holds it."""

    revision: int
    holder: str = ""
    token: int = 0
    number: int = 0
    # The revision of that value. The bucket's is higher if a client that is no node wrote there.
    sealed_at: int = 0


class _OwnLease(NamedTuple):
    """A lease that this node took, and the time until which it is certain."""

    lease: Lease
    revision: int
    until: float


class _SeenRevision(NamedTuple):
    revision: int
    since: float


class NatsLeases:
    """Leases as values in a JetStream bucket."""

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
        self._has_bucket = False
        self._key = derive_key(bus.secret, b"leases")
        self._own_leases: dict[str, _OwnLease] = {}
        self._seen: dict[str, _SeenRevision] = {}
        self._last: dict[str, _LeaseEntry] = {}
        self._has_warned = False

    @property
    def lifetime(self) -> timedelta:
        return self._lifetime

    async def take(self, name: str, holder: str) -> Lease | None:
        """Take a lease. A node that already holds it gets the same lease again."""
        async with self._jetstream() as js:
            entry = await self._read(js, name)
            own = self._own_leases.get(name)
            if own is not None and _is_same_lease(entry, own.lease) and own.lease.holder == holder:
                if self._clock() < own.until:
                    return own.lease
            elif not self._is_free(name, entry):
                return None
            sent = self._clock()
            revision = await self._write(js, name, _LeaseValue(holder), entry.revision)
        if revision is None:
            return None
        lease = Lease(name, holder, revision)
        self._own_leases[name] = _OwnLease(lease, revision, sent + self._seconds)
        self._seen.pop(name, None)
        return lease

    async def renew(self, lease: Lease) -> bool:
        own = self._own_leases.get(lease.name)
        if own is None or own.lease != lease or self._clock() >= own.until:
            return False
        sent = self._clock()
        async with self._jetstream() as js:
            revision = await self._overwrite(js, own, _LeaseValue(lease.holder, lease.token))
        if revision is None:
            self._own_leases.pop(lease.name, None)
            return False
        until = sent + self._seconds
        self._own_leases[lease.name] = _OwnLease(lease, revision, until)
        return self._clock() < until

    async def release(self, lease: Lease) -> None:
        own = self._own_leases.get(lease.name)
        if own is None or own.lease != lease:
            return
        # Expired first: this node no longer holds the lease, even if NATS cannot be reached.
        self._own_leases[lease.name] = own._replace(until=-math.inf)
        async with self._jetstream() as js:
            await self._overwrite(js, own, _LeaseValue(""))
        self._own_leases.pop(lease.name, None)

    async def holder(self, name: str) -> Lease | None:
        async with self._jetstream() as js:
            entry = await self._read(js, name)
        if self._is_free(name, entry) or entry.sealed_at == _UNSEALED:
            return None
        own = self._own_leases.get(name)
        if own is not None and _is_same_lease(entry, own.lease) and self._clock() >= own.until:
            return None
        return Lease(name, entry.holder, entry.token)

    def _is_free(self, name: str, entry: _LeaseEntry) -> bool:
        """Whether the lease is free: given up, or unchanged for a whole lifetime."""
        if not entry.holder and entry.sealed_at != _UNSEALED:
            return True
        now = self._clock()
        seen = self._seen.get(name)
        if seen is None or seen.revision != entry.sealed_at:
            self._seen[name] = _SeenRevision(entry.sealed_at, now)
            return False
        return now - seen.since >= self._seconds * _LONGER

    async def _overwrite(
        self, js: JetStreamContext, own: _OwnLease, value: _LeaseValue
    ) -> int | None:
        """Overwrite a lease of this node. Return None if another holds it.

        A renewal whose answer was lost may have counted, so a failed write is repeated.
        """
        name = own.lease.name
        revision = await self._write(js, name, value, own.revision)
        if revision is None:
            entry = await self._read(js, name)
            if _is_same_lease(entry, own.lease):
                revision = await self._write(js, name, value, entry.revision)
        return revision

    async def _read(self, js: JetStreamContext, name: str) -> _LeaseEntry:
        """Read a lease from the bucket's leader. A write based on a stale answer fails."""
        try:
            found = await js.get_last_msg(self.stream, self._subject(name))
        except NotFoundError as missing:
            if missing.err_code == _STREAM_NOT_FOUND:
                raise
            return _LeaseEntry(0)
        return self._unseal_lease(name, found.seq or 0, found.data or b"")

    def _unseal_lease(self, name: str, revision: int, data: bytes) -> _LeaseEntry:
        """Return the lease in a value, if a node sealed it after the last known one."""
        last = self._last.get(name, _LeaseEntry(0, sealed_at=_UNSEALED))
        if revision == last.sealed_at:
            return last
        try:
            value = msgspec.json.decode(data, type=_LeaseValue)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            value = _LeaseValue("")
        is_sealed = hmac.compare_digest(value.seal.encode(), self._seal(name, value).encode())
        if not is_sealed or value.number <= last.number:
            self._tell_of_strangers()
            return last._replace(revision=revision)
        token = value.token or revision
        entry = _LeaseEntry(revision, value.holder, token, value.number, revision)
        self._last[name] = entry
        return entry

    def _seal(self, name: str, value: _LeaseValue) -> str:
        said = msgspec.json.encode([name, value.holder, value.token, value.number])
        return derive_key(self._key, said).hex()

    def _tell_of_strangers(self) -> None:
        if not self._has_warned:
            log.warning(
                "A value in %s was not written by a node of this cluster. Give each node the"
                " same pepper, and allow no other writer",
                self.bucket,
            )
        self._has_warned = True

    async def _write(
        self, js: JetStreamContext, name: str, value: _LeaseValue, after: int
    ) -> int | None:
        """Write a value and return its revision, or None if the last revision is not `after`."""
        headers = {str(api.Header.EXPECTED_LAST_SUBJECT_SEQUENCE.value): str(after)}
        last = self._last.get(name, _LeaseEntry(0))
        # Another node may know a higher number, from a value that the bucket no longer has. That
        # number also began as a time, and has grown more slowly.
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
        self._unseal_lease(name, written.seq, data)
        return written.seq

    def _subject(self, name: str) -> str:
        if not 0 < len(name) <= MAX_NAME_LENGTH:
            raise MalformedMessage("a lease's name has 1 to 256 characters")
        letters = (bytes((each,)) for each in name.encode())
        key = "".join(c.decode() if _SAFE.match(c) else f"={c.hex()}" for c in letters)
        return f"$KV.{self.bucket}.{key}"

    @asynccontextmanager
    async def _jetstream(self) -> AsyncGenerator[JetStreamContext]:
        js = JetStreamContext(self._bus.connection, timeout=_SECONDS)
        try:
            async with asyncio.timeout(_SECONDS):
                await self._make(js)
                yield js
        except TimeoutError:
            raise _unknown_holder_error("NATS did not answer in time") from None
        except MalformedMessage:
            raise
        except _REQUEST_ERRORS as failed:
            # The bucket may be missing, so the next query looks for it first.
            self._has_bucket = False
            raise _unknown_holder_error(str(failed)) from failed

    async def _make(self, js: JetStreamContext) -> None:
        """Create the bucket if it is missing, and raise its number of replicas if needed."""
        if self._has_bucket:
            return
        try:
            told = await js.stream_info(self.stream)
        except NotFoundError:
            told = await self._ensure_bucket(js)
        config = told.config
        if (config.num_replicas or 1) < self._replicas:
            config.num_replicas = self._replicas
            await cast("Any", js).update_stream(config)
            log.info("Leases in NATS now have %d replicas", self._replicas)
        self._has_bucket = True

    async def _ensure_bucket(self, js: JetStreamContext) -> api.StreamInfo:
        wanted = api.StreamConfig(
            name=self.stream,
            description="Leases of a Comity deployment",
            subjects=[f"$KV.{self.bucket}.>"],
            storage=api.StorageType.FILE,
            num_replicas=self._replicas,
            max_msgs_per_subject=1,
            max_age=_STREAM_RETENTION_SECONDS,
            discard=api.DiscardPolicy.NEW,
            allow_rollup_hdrs=True,
            deny_delete=True,
            # The tokens of a new bucket thus exceed those of a deleted one.
            first_seq=time.time_ns() // 1_000_000,
        )
        try:
            return await cast("Any", js).add_stream(wanted)
        except BadRequestError as refused:
            if refused.err_code != _NAME_IN_USE:
                raise
        # Another node created it first.
        return await js.stream_info(self.stream)


def _is_same_lease(entry: _LeaseEntry, lease: Lease) -> bool:
    return entry.token == lease.token and entry.holder == lease.holder


def _unknown_holder_error(reason: str) -> Unavailable:
    return Unavailable(f"the holder of the lease is unknown: {reason}", UPSTREAM_DOWN)


WINDOW: Final = timedelta(minutes=10)
"""How long a push is remembered."""
MOST_KEPT: Final = 1_000_000


class NatsFirsts:
    """Recent pushes as message ids in a JetStream stream, which rejects duplicates."""

    def __init__(
        self, bus: NatsBus, window: timedelta = WINDOW, replicas: int | None = None
    ) -> None:
        self._bus = bus
        self._window = window.total_seconds()
        self._replicas = bus.addresses.replicas if replicas is None else replicas
        self.stream = f"comity-pushes-{bus.addresses.deployment}"
        self._subject = f"{bus.addresses.deployment}.pushes"
        self._key = derive_key(bus.secret, b"pushes")
        self._has_stream = False

    async def is_first(self, key: str) -> bool:
        # A keyed id cannot be sent in advance by another NATS client to have the push dropped.
        id = derive_key(self._key, key.encode(errors="surrogatepass")).hex()
        headers = {str(api.Header.MSG_ID.value): id}
        js = JetStreamContext(self._bus.connection, timeout=_SECONDS)
        try:
            async with asyncio.timeout(_SECONDS):
                await self._make(js)
                written = await js.publish(self._subject, b"", headers=headers, stream=self.stream)
        except TimeoutError:
            raise _pushes_unknown("NATS did not answer in time") from None
        except _REQUEST_ERRORS as failed:
            # The stream may be missing, so the next query looks for it first.
            self._has_stream = False
            raise _pushes_unknown(str(failed)) from failed
        return not written.duplicate

    async def _make(self, js: JetStreamContext) -> None:
        """Create the stream if it is missing, and raise its number of replicas if needed."""
        if self._has_stream:
            return
        try:
            told = await js.stream_info(self.stream)
        except NotFoundError:
            told = await self._ensure_stream(js)
        config = told.config
        if (config.num_replicas or 1) < self._replicas:
            config.num_replicas = self._replicas
            await cast("Any", js).update_stream(config)
            log.info("Recent push ids in NATS now have %d replicas", self._replicas)
        self._has_stream = True

    async def _ensure_stream(self, js: JetStreamContext) -> api.StreamInfo:
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
        # Another node created it first.
        return await js.stream_info(self.stream)


def _pushes_unknown(reason: str) -> Unavailable:
    return Unavailable(
        f"it is unknown whether this event was pushed before: {reason}", UPSTREAM_DOWN
    )
