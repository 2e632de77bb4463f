"""What operators read of the journal: of a running gateway, or of the store where none runs."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from functools import partial

from comity.adapters.stores import open_store
from comity.app.journaling import Journaling, make_signer, node_of, signing_key_file
from comity.config import Settings
from comity.kernel.ask_ids import ask_named
from comity.kernel.history import History
from comity.ports import Records
from comity.surfaces.asked import Room
from comity.surfaces.journal_api import JournalApi
from comity.wire.errors import Misconfigured


def journal_rooms(records: Records, journaling: Journaling) -> dict[str, Room]:
    """What is found under /api/journal of a gateway that runs."""
    checkpoints, journal = journaling.checkpoints, journaling.journal

    def about() -> Mapping[str, object]:
        signed = None if checkpoints is None else checkpoints.signed
        return {
            "node": journal.node if journal.head is None else journal.head.node,
            "key": None if checkpoints is None else checkpoints.key,
            "signed_to": None if signed is None else signed.seq,
            "waiting": journal.waiting,
        }

    settle = None if journal.is_lasting else journal.flush
    return JournalApi(
        History(records.journal, partial(ask_named, records.asks), settle=settle), about
    ).rooms


def stored_journal_rooms(records: Records, settings: Settings) -> dict[str, Room]:
    """The same over the store alone."""

    def about() -> Mapping[str, object]:
        signer = make_signer(settings) if _has_key(settings) else None
        key = None if signer is None else signer.key
        return {"node": node_of(settings, signer), "key": key, "signed_to": None, "waiting": 0}

    return JournalApi(History(records.journal, partial(ask_named, records.asks)), about).rooms


@asynccontextmanager
async def history_of(settings: Settings) -> AsyncGenerator[History]:
    """The journal of a store, opened once for all that is read of it. Raises Misconfigured."""
    if not settings.store_url:
        raise Misconfigured(
            'no journal is kept without a store: write url = "sqlite:///comity.db" in [store]'
        )
    records = open_store(settings.store_url)
    try:
        await records.open()
        yield History(records.journal, partial(ask_named, records.asks))
    finally:
        await records.close()


def _has_key(settings: Settings) -> bool:
    """Whether there is one: whoever only asks for it makes none."""
    file = signing_key_file(settings)
    return file is not None and file.exists()
