"""`adapters/witnesses.py`: checkpoints reach a file, a pipe or an address, whole and in order."""

import asyncio
import os
import stat
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from aiohttp import web

from comity.adapters.witnesses import AddressWitness, FileWitness, LastSignedFile, open_witness
from comity.wire import exported
from comity.wire.errors import Misconfigured, Unavailable
from comity.wire.journal import Checkpoint

AT = datetime(2026, 11, 15, tzinfo=UTC)

type Answer = Callable[[web.Request], Awaitable[web.Response]]


def _checkpoint(seq: int) -> Checkpoint:
    return Checkpoint("node", seq, bytes(32), AT, "ab" * 32, bytes(64))


def _numbers(said: bytes) -> list[int]:
    rows = [exported.row_of(line).checkpoint for line in said.splitlines()]
    return [row.seq for row in rows if row is not None]


async def test_a_file_is_added_to_and_never_begun_anew(tmp_path: Path) -> None:
    file = tmp_path / "checkpoints.jsonl"
    for seq in (1, 2):
        witness = open_witness(str(file))
        await witness.tell(_checkpoint(seq))
        await witness.close()
    assert _numbers(file.read_bytes()) == [1, 2]
    assert stat.S_IMODE(file.stat().st_mode) & 0o007 == 0


async def test_many_at_once_stand_one_after_the_other(tmp_path: Path) -> None:
    file = tmp_path / "checkpoints.jsonl"
    one, other = open_witness(str(file)), open_witness(str(file))
    await asyncio.gather(*(one.tell(_checkpoint(seq)) for seq in range(50)))
    await asyncio.gather(*(each.tell(_checkpoint(99)) for each in (one, other) for _ in range(20)))
    assert _numbers(file.read_bytes()) == [*range(50), *[99] * 40]


async def test_a_file_that_was_moved_away_is_begun_again(tmp_path: Path) -> None:
    file = tmp_path / "checkpoints.jsonl"
    witness = open_witness(str(file))
    await witness.tell(_checkpoint(1))
    file.rename(tmp_path / "moved")
    await witness.tell(_checkpoint(2))
    assert _numbers(file.read_bytes()) == [2]


async def test_a_pipe_takes_them_as_a_stream_and_is_told_where_nobody_reads(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    witness = open_witness(str(pipe))
    with pytest.raises(OSError, match="No such device"):
        await witness.tell(_checkpoint(1))
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        await witness.tell(_checkpoint(2))
        await witness.tell(_checkpoint(3))
        assert _numbers(os.read(reader, 65536)) == [2, 3]
    finally:
        os.close(reader)


async def test_what_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="Is a directory"):
        await FileWitness(tmp_path / "folder").tell(_checkpoint(1))
    with pytest.raises(OSError, match="No space"):
        await FileWitness(Path("/dev/full")).tell(_checkpoint(1))


async def _served(answer: Answer, deed: Callable[[str], Awaitable[None]]) -> None:
    app = web.Application()
    app.router.add_route("*", "/{any:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        await deed(f"http://127.0.0.1:{runner.addresses[0][1]}")
    finally:
        await runner.cleanup()


async def test_an_address_is_told_each_and_says_when_it_has_it() -> None:
    heard: list[tuple[str, str, bytes]] = []

    async def take(request: web.Request) -> web.Response:
        heard.append((request.method, request.path_qs, await request.read()))
        return web.Response(status=204 if len(heard) < 3 else 503)

    async def tell(origin: str) -> None:
        witness = open_witness(f"{origin}/take?from=here")
        await witness.tell(_checkpoint(1))
        await witness.tell(_checkpoint(2))
        with pytest.raises(Unavailable, match="status 503"):
            await witness.tell(_checkpoint(3))
        await witness.close()

    await _served(take, tell)
    assert [each[:2] for each in heard] == [("POST", "/take?from=here")] * 3
    assert _numbers(b"".join(each[2] for each in heard)) == [1, 2, 3]


async def test_an_address_where_nobody_is_is_an_error() -> None:
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1 did not take a checkpoint"):
        await AddressWitness("http://127.0.0.1:1/x").tell(_checkpoint(1))


@pytest.mark.parametrize("where", ["http://", "https:///x", "http://[", "/nowhere/at/all", "/tmp"])
def test_what_is_neither_a_file_nor_an_address_is_refused(where: str) -> None:
    with pytest.raises(Misconfigured):
        open_witness(where)


def test_the_last_checkpoint_of_each_chain_is_kept_beside_the_key(tmp_path: Path) -> None:
    kept = LastSignedFile(tmp_path / "key.last-signed")
    assert kept.read("node") is None
    for seq in (1, 2):
        asyncio.run(kept.tell(_checkpoint(seq)))
    beside = _checkpoint(7)._replace(node="node~2")
    asyncio.run(kept.tell(beside))
    assert kept.read("node") == _checkpoint(2)
    assert kept.read("node~2") == beside
    assert kept.read("another") is None
    moved = Path(kept.set_aside("node"))
    assert _numbers(moved.read_bytes()) == [2]
    assert kept.read("node") is None
    (tmp_path / "key.last-signed").write_bytes(b"{")
    assert kept.read("node") is None
    asyncio.run(kept.close())
