"""Where the records are kept, as the settings say, and what is known of them in memory."""

import asyncio
import gc
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from comity.adapters.stores import file_of, open_store
from comity.app.asking import stored_asks_rooms
from comity.app.governing import decided_of, stored_grants_rooms
from comity.app.recognising import demand_pepper, is_pepper_given, pepper_of
from comity.app.retelling import stored_journal_rooms
from comity.config import Settings
from comity.kernel.audit_recorder import AuditRecorder
from comity.kernel.certainty import Certainty
from comity.kernel.grants import Grants
from comity.kernel.identity import Register
from comity.kernel.key_audit import KeyAudit
from comity.kernel.keyring import Keyring
from comity.kernel.last_use import LastUse
from comity.kernel.snapshot import Snapshot
from comity.surfaces.asked import Room
from comity.surfaces.records_api import RecordsApi
from comity.wire.errors import Misconfigured

log = logging.getLogger(__name__)

WRITTEN_EVERY_SECONDS: Final = 30.0


def make_snapshot(settings: Settings) -> Snapshot:
    """What calls are judged by; nothing is known of the records before it is followed."""
    # What is only in memory cannot be out of date.
    age = settings.snapshot_max_age if settings.store_url else None
    certainty = Certainty(age)
    grants = Grants(certainty=certainty)
    return Snapshot(open_store(settings.store_url), grants, certainty, decided_of(settings))


@asynccontextmanager
async def recorded(settings: Settings) -> AsyncGenerator[Snapshot]:
    """The records read, and followed until the way out."""
    snapshot = make_snapshot(settings)
    async with snapshot.followed():
        if settings.store_url:
            # A hundred thousand grants are not to be looked through for garbage again and again.
            gc.freeze()
        yield snapshot


@asynccontextmanager
async def last_use_written(snapshot: Snapshot, used: LastUse) -> AsyncGenerator[None]:
    """Write down now and then, and at the end, when keys were last used."""
    write = snapshot.records.keys.touch

    async def keep_writing() -> None:
        while True:
            await asyncio.sleep(WRITTEN_EVERY_SECONDS)
            try:
                await used.flush(write)
            except Exception:
                log.exception("writing down when keys were last used ended in a bug")

    writing = asyncio.ensure_future(keep_writing())
    try:
        yield
    finally:
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
        await used.flush(write)


def make_register(settings: Settings, snapshot: Snapshot) -> Register:
    return Register(snapshot.keys, snapshot.parties, pepper_for(settings))


def pepper_for(settings: Settings) -> bytes:
    """The secret by which the keys of this store are recognised."""
    if _is_pepper_shared(settings):
        demand_pepper(settings)
    return pepper_of(settings, _pepper_beside_store(settings))


def has_usable_pepper(settings: Settings) -> bool:
    """Whether the pepper is there already; Misconfigured where it must be, or cannot be used."""
    if _is_pepper_shared(settings):
        demand_pepper(settings)
    beside = _pepper_beside_store(settings)
    if is_pepper_given(settings) or (beside is not None and beside.exists()):
        pepper_of(settings, beside)
        return True
    return False


def _is_pepper_shared(settings: Settings) -> bool:
    is_shared_store = bool(settings.store_url) and file_of(settings.store_url) is None
    return is_shared_store or bool(settings.cluster_url)


def _pepper_beside_store(settings: Settings) -> Path | None:
    file = file_of(settings.store_url)
    return None if file is None else file.with_name(f"{file.name}.pepper")


def rooms_of(
    snapshot: Snapshot, pepper: bytes, recorder: AuditRecorder | None = None
) -> dict[str, Room]:
    """What operators find of the records under /api; what they change is written down."""
    keyring = Keyring(snapshot.records, pepper, snapshot.refresh)
    if recorder is not None:
        keyring.audit = KeyAudit(recorder)
    return RecordsApi(keyring).rooms


@asynccontextmanager
async def administered(settings: Settings) -> AsyncGenerator[dict[str, Room]]:
    """The same rooms over the store alone, where no gateway runs."""
    if not settings.store_url:
        raise Misconfigured(
            'nothing is kept without a store: write url = "sqlite:///comity.db" in [store], or '
            "start the gateway first"
        )
    records = open_store(settings.store_url)
    try:
        await records.open()
        pepper = pepper_for(settings)
        kept = RecordsApi(Keyring(records, pepper)).rooms
        kept |= stored_asks_rooms(records, settings, pepper)
        kept |= stored_journal_rooms(records, settings)
        yield kept | await stored_grants_rooms(records, settings)
    finally:
        await records.close()
