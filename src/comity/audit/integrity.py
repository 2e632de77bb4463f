"""Signed checkpoints and retention of the audit log."""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Final

from comity.audit.chain import (
    GENESIS,
    PAGE,
    AuditRecord,
    ChainCheckpoint,
    ChainSegment,
    CheckpointMirror,
    CheckpointSigner,
    LastCheckpointStore,
    signed_part,
)
from comity.audit.events import AuditType
from comity.audit.log import AuditLog
from comity.audit.verify import CheckpointInterval
from comity.errors import Unavailable
from comity.mcp.actors import GATEWAY
from comity.toolkit.background import BackgroundTasks

log = logging.getLogger(__name__)


class AuditCheckpointer:
    """Signs the chain after `every` entries, or `within` a time of the first unsigned one."""

    def __init__(
        self,
        audit_log: AuditLog,
        signer: CheckpointSigner,
        witnesses: Sequence[CheckpointMirror],
        interval: CheckpointInterval,
        last: LastCheckpointStore | None = None,
    ) -> None:
        self._audit_log = audit_log
        self._signer = signer
        self._witnesses = witnesses if last is None else [last, *witnesses]
        self._max_unsigned = interval.max_entries
        self._within = interval.max_delay.total_seconds()
        self._last_signed = last
        self._unsigned_count = 0
        self._last: AuditRecord | None = None
        self._later: asyncio.TimerHandle | None = None
        self._background_tasks = BackgroundTasks("the checkpoints")
        self.last_checkpoint: ChainCheckpoint | None = None
        audit_log.commit_listeners.append(self._on_committed)

    @property
    def key(self) -> str:
        """The public key, as hexadecimal digits."""
        return self._signer.key

    @property
    def unsigned_count(self) -> int:
        """How many committed entries of this process no checkpoint covers yet."""
        return self._unsigned_count

    async def close(self) -> None:
        """Sign the rest, and wait until every checkpoint is copied."""
        if self._unsigned_count:
            self._sign()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._within):
                await self._background_tasks.finish()
        self._background_tasks.cancel()
        for witness in self._witnesses:
            await witness.close()

    def _on_committed(self, records: Sequence[AuditRecord]) -> None:
        if not records:
            return
        if self._last is not None and self._last.node != records[-1].node and self._unsigned_count:
            self._sign()
        if self._last is None or self._last.node != records[-1].node:
            self._recall(records[0])
        self._last = records[-1]
        self._unsigned_count += len(records)
        if self._unsigned_count >= self._max_unsigned:
            self._sign()
        elif self._later is None:
            loop = asyncio.get_running_loop()
            self._later = loop.call_later(self._within, self._sign)

    def _sign(self) -> None:
        if self._later is not None:
            self._later.cancel()
            self._later = None
        last, self._unsigned_count = self._last, 0
        if last is None:
            return
        bare = ChainCheckpoint(
            last.node, last.seq, last.hash, self._audit_log.clock(), self._signer.key
        )
        self.last_checkpoint = bare._replace(signature=self._signer.sign(signed_part(bare)))
        self._background_tasks.start(self._copy(self.last_checkpoint))

    def _recall(self, first: AuditRecord) -> None:
        """Store the last checkpoint from before the run that begins at `first` again."""
        if self._last_signed is None:
            return
        signed = self._last_signed.read(first.node)
        if signed is None or signed.key != self._signer.key:
            return
        if signed.seq >= first.seq:
            log.error(
                "The audit log lost entries: entry %d of %s was signed, and the store ended before "
                "it. Run `comity audit verify --checkpoints %s`.",
                signed.seq,
                first.node,
                self._last_signed.set_aside(first.node),
            )
            return
        self._background_tasks.start(self._store_checkpoint(signed))

    async def _store_checkpoint(self, checkpoint: ChainCheckpoint) -> None:
        try:
            await self._audit_log.store.add_checkpoint(checkpoint)
        except Unavailable as error:
            log.warning("A checkpoint could not be stored: %s", error)

    async def _copy(self, checkpoint: ChainCheckpoint) -> None:
        for witness in self._witnesses:
            try:
                await witness.write(checkpoint)
            except (OSError, Unavailable) as error:
                log.error("A checkpoint could not be copied to the mirror: %s", error)  # noqa: TRY400  # no bug of ours
        await self._store_checkpoint(checkpoint)


RETENTION_INTERVAL_SECONDS: Final = 3600.0
AT_ONCE: Final = 50_000
"""How many entries one segment has at most. The others go into the next one."""


class AuditRetention:
    """Removes entries that are older than the retention period."""

    def __init__(self, audit_log: AuditLog, kept_for: timedelta) -> None:
        self._audit_log = audit_log
        self._kept_for = kept_for

    async def keep_on(self) -> None:
        """Remove old entries periodically, until cancelled."""
        while True:
            try:
                while await self.sweep():
                    pass
            except Unavailable as error:
                log.warning("Old audit entries could not be removed: %s", error)
            except Exception:
                log.exception("Removing old audit entries failed")
            await asyncio.sleep(RETENTION_INTERVAL_SECONDS)

    async def sweep(self) -> int:
        """Seal and remove one segment. Gives the number of its entries. Raises Unavailable."""
        head = self._audit_log.head
        if head is None:
            return 0
        store = self._audit_log.store
        gone = list(await store.segments(head.node))
        after, before = (gone[-1].last, gone[-1].hash) if gone else (0, GENESIS)
        last = await self._last_before(head.node, after, self._audit_log.clock() - self._kept_for)
        if last is None:
            return 0
        now = self._audit_log.clock()
        segment = ChainSegment(head.node, after + 1, last.seq, before, last.hash, now)
        said = {"first": segment.first, "last": segment.last, "hash": segment.hash.hex()}
        await self._audit_log.write(
            self._audit_log.event(AuditType.SEGMENT_SEALED, GATEWAY, details=said)
        )
        await store.drop(segment)
        return segment.last - segment.first + 1

    async def _last_before(self, node: str, after: int, until: datetime) -> AuditRecord | None:
        found: AuditRecord | None = None
        while found is None or found.seq - after < AT_ONCE:
            page = await self._audit_log.store.page(
                node, after if found is None else found.seq, PAGE
            )
            old = [line for line in page if line.at < until]
            found = old[-1] if old else found
            if not old or len(old) < len(page):
                return found
        return found
