"""Signs how far the journal has come, every so often, and copies that to where others keep it."""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta

from comity.kernel.chores import Chores
from comity.kernel.journal import Journal
from comity.ports.journaling import Signer, Witness
from comity.rules.chain import signed_part
from comity.wire.errors import Unavailable
from comity.wire.journal import Checkpoint, Line

log = logging.getLogger(__name__)


class Checkpoints:
    """A signature after `every` entries, or `within` a while of the first that has none."""

    def __init__(
        self,
        journal: Journal,
        signer: Signer,
        witnesses: Sequence[Witness],
        every: int,
        within: timedelta,
    ) -> None:
        self._journal = journal
        self._signer = signer
        self._witnesses = witnesses
        self._every = every
        self._within = within.total_seconds()
        self._unsigned = 0
        self._last: Line | None = None
        self._later: asyncio.TimerHandle | None = None
        self._chores = Chores("the checkpoints")
        self.signed: Checkpoint | None = None
        journal.committed.append(self._committed)

    @property
    def key(self) -> str:
        """The public key, as hexadecimal digits."""
        return self._signer.key

    async def close(self) -> None:
        """Sign what is left, and see that everything signed has been copied."""
        if self._unsigned:
            self._sign()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._within):
                await self._chores.finish()
        self._chores.cancel()
        for witness in self._witnesses:
            await witness.close()

    def _committed(self, lines: Sequence[Line]) -> None:
        if not lines:
            return
        if self._last is not None and self._last.node != lines[-1].node and self._unsigned:
            self._sign()
        self._last = lines[-1]
        self._unsigned += len(lines)
        if self._unsigned >= self._every:
            self._sign()
        elif self._later is None:
            loop = asyncio.get_running_loop()
            self._later = loop.call_later(self._within, self._sign)

    def _sign(self) -> None:
        if self._later is not None:
            self._later.cancel()
            self._later = None
        last, self._unsigned = self._last, 0
        if last is None:
            return
        bare = Checkpoint(last.node, last.seq, last.hash, self._journal.clock(), self._signer.key)
        self.signed = bare._replace(signature=self._signer.sign(signed_part(bare)))
        self._chores.start(self._copy(self.signed))

    async def _copy(self, checkpoint: Checkpoint) -> None:
        for witness in self._witnesses:
            try:
                await witness.tell(checkpoint)
            except (OSError, Unavailable) as error:
                log.error("a checkpoint could not be copied outside: %s", error)  # noqa: TRY400  # what the world does is no bug
        try:
            await self._journal.store.keep(checkpoint)
        except Unavailable as error:
            log.warning("a checkpoint is not in the store: %s", error)
