"""Signs how far the journal has come, every so often, and copies that to where others keep it.

Who can write to the store can rewrite the end of a chain and remove the signatures of it. A gateway
that opened such a chain again would sign it. So the last signature is also kept beside the key
(`last`), and goes back into the store at each start: a rewritten chain contradicts it.
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress

from comity.kernel.chores import Chores
from comity.kernel.journal import Journal
from comity.ports.journaling import LastSigned, Signer, Witness
from comity.rules.chain import signed_part
from comity.rules.proof_chain import CheckpointInterval
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
        interval: CheckpointInterval,
        last: LastSigned | None = None,
    ) -> None:
        self._journal = journal
        self._signer = signer
        self._witnesses = witnesses if last is None else [last, *witnesses]
        self._every = interval.every
        self._within = interval.within.total_seconds()
        self._last_signed = last
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
        if self._last is None or self._last.node != lines[-1].node:
            self._recall(lines[0])
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

    def _recall(self, first: Line) -> None:
        """Put back what was signed last of this chain, before the run that begins with `first`."""
        if self._last_signed is None:
            return
        signed = self._last_signed.read(first.node)
        if signed is None or signed.key != self._signer.key:
            return
        if signed.seq >= first.seq:
            log.error(
                "The audit log lost entries: entry %d of %s was signed, and the store ended before "
                "it. Run `comity journal verify --checkpoints %s`.",
                *(signed.seq, first.node, self._last_signed.set_aside(first.node)),
            )
            return
        self._chores.start(self._keep(signed))

    async def _keep(self, checkpoint: Checkpoint) -> None:
        try:
            await self._journal.store.keep(checkpoint)
        except Unavailable as error:
            log.warning("a checkpoint is not in the store: %s", error)

    async def _copy(self, checkpoint: Checkpoint) -> None:
        for witness in self._witnesses:
            try:
                await witness.tell(checkpoint)
            except (OSError, Unavailable) as error:
                log.error("a checkpoint could not be copied outside: %s", error)  # noqa: TRY400  # what the world does is no bug
        await self._keep(checkpoint)
