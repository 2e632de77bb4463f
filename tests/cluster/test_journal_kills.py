"""Whatever is killed, and when: what the journal said was kept is there, and no chain has a gap.

A real writer and a PostgreSQL of its own, or a file, each killed as often as COMITY_KILLS says.
"""

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from comity.app.records import open_store
from comity.audit import chain
from comity.audit.chain import AuditStore, ChainHead
from comity.errors import Unavailable
from comity.storage import postgres as sql
from comity.storage import stores
from tests.cluster.journal_writer import chained, reopened
from tests.cluster.postgres import Postgres, a_postgres
from tests.contracts.stores import run_on
from tests.interop.peers import ROOT

KILLS = int(os.environ.get("COMITY_KILLS", "3"))
SECONDS = 60.0
ENOUGH = 5
"""So many batches are kept between two kills, at least."""

pytestmark = pytest.mark.timeout(60 + 40 * KILLS)


class Writer:
    """A process that adds entries, and what it said was kept."""

    def __init__(self, url: str) -> None:
        self.kept: list[tuple[str, int, bytes]] = []
        self.opened: list[tuple[str, int, bytes]] = []
        self._changed = threading.Condition()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.cluster.journal_writer", url],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if not line.endswith("\n"):
                return  # killed in the middle of a word
            said, node, seq, linked = line.split()
            with self._changed:
                told = (node, int(seq), bytes.fromhex(linked))
                (self.kept if said == "kept" else self.opened).append(told)
                self._changed.notify_all()

    def keeps(self, more: int = ENOUGH) -> None:
        """Until it has kept some batches more."""
        with self._changed:
            wanted = len(self.kept) + more
            assert self._changed.wait_for(lambda: len(self.kept) >= wanted, SECONDS), "it stands"

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(SECONDS)
        self._reader.join(SECONDS)
        assert self._process.stdout is not None
        self._process.stdout.close()


@contextmanager
def a_writer(url: str) -> Generator[Writer]:
    writer = Writer(url)
    try:
        yield writer
    finally:
        writer.kill()


@pytest.fixture(scope="module")
def postgres() -> Generator[Postgres]:
    with a_postgres() as server:
        asyncio.run(_prepare(server.url))
        yield server


async def _prepare(url: str) -> None:
    await stores.upgrade_store(url)
    # Whoever keeps a journal does not go by what is enough for others.
    await run_on(url, "ALTER DATABASE postgres SET synchronous_commit = off")


async def _verify(url: str, kept: list[tuple[str, int, bytes]]) -> None:
    records = open_store(url)
    await records.open()
    try:
        found = {
            node: await _hashes(records.audit_log, node) for node in await records.audit_log.nodes()
        }
    finally:
        await records.close()
    missing = [(node, seq) for node, seq, linked in kept if found[node].get(seq) != linked]
    assert missing == []


async def _hashes(journal: AuditStore, node: str) -> dict[int, bytes]:
    """Of one chain, each entry of which follows the one before."""
    seq, previous, found = 0, chain.GENESIS, dict[int, bytes]()
    while page := await journal.page(node, after=seq):
        for line in page:
            assert line.seq == seq + 1
            assert line.hash == chain.entry_hash(previous, node.encode(), line.seq, line.body)
            assert chain.has_matching_body(line)
            seq, previous = line.seq, line.hash
            found[seq] = previous
    return found


def _killed_again_and_again(url: str, kill_server: Callable[[], None]) -> None:
    kept: list[tuple[str, int, bytes]] = []
    for _ in range(KILLS):
        with a_writer(url) as writer:
            writer.keeps()
            kill_server()
            writer.keeps()
        kept += writer.kept
        # It was killed, so it knows less than was kept, and never more.
        asyncio.run(_verify(url, kept))
    assert len(kept) >= KILLS * 2 * ENOUGH


def test_nothing_is_lost_when_postgres_and_the_writer_are_killed(postgres: Postgres) -> None:
    def kill_server() -> None:
        postgres.kill()
        postgres.start()

    _killed_again_and_again(postgres.url, kill_server)


def test_nothing_is_lost_of_a_file_when_the_writer_is_killed(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    asyncio.run(stores.upgrade_store(url))
    _killed_again_and_again(url, lambda: None)


@pytest.mark.parametrize("count", [1, 50])
async def test_a_server_that_falls_silent_is_noticed_and_the_chain_goes_on(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr(sql, "PATIENCE_SECONDS", 1.0)
    records = open_store(postgres.url)
    journal, node = records.audit_log, f"silent-{count}"
    lines = chained(await journal.open(node), count)
    await journal.append(lines)
    more = chained(ChainHead(node, lines[-1].seq, lines[-1].hash), count)
    postgres.fall_silent()
    try:
        async with asyncio.timeout(SECONDS):
            with pytest.raises(Unavailable, match="it stays silent"):
                await journal.append(more)
            with pytest.raises(Unavailable, match="it stays silent"):
                await journal.open(node)
    finally:
        postgres.speak_again()
    head = await reopened(journal, node)
    assert (head.node, head.hash) in {(node, each[-1].hash) for each in (lines, more)}
    await journal.append(chained(head, count))
    assert len(await _hashes(journal, node)) == head.seq + count
    await records.close()
