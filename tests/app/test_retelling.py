"""What operators read of the journal: of a running gateway, and of a store alone."""

from pathlib import Path

import pytest

from comity.app.journaling import journaled
from comity.app.recording import recorded
from comity.app.retelling import history_of, journal_rooms
from comity.config import Settings
from comity.surfaces.asked import Asked
from comity.wire.audit import Event, Type
from comity.wire.errors import Misconfigured
from comity.wire.parties import LOCAL


async def test_the_room_of_the_journal_finds_what_was_kept(tmp_path: Path) -> None:
    settings = Settings(store_url=f"sqlite:///{tmp_path}/c.db")
    async with recorded(settings) as snapshot, journaled(settings, snapshot, b"p" * 32) as kept:
        journal = kept.journal
        await journal.write(Event(Type.TOOL_EXECUTED, "agent:a", journal.clock()))
        rooms = journal_rooms(snapshot.records, kept)
        (room,) = rooms.values()
        found = await room(Asked("GET", (), {}, {}, LOCAL))
    assert "agent:a" in str(found)
    async with history_of(settings) as history:
        lines = [line async for line in history.export()]
    assert len(lines) >= 3


async def test_without_a_store_there_is_no_journal_to_read() -> None:
    with pytest.raises(Misconfigured, match=r"\[store\]"):
        async with history_of(Settings()):
            pass
