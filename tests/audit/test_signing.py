"""The signing key, and the witnesses of checkpoints: files, pipes and addresses."""

import asyncio
import os
import stat
import subprocess
import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from aiohttp import web

from comity.audit import export
from comity.audit.chain import ChainCheckpoint
from comity.audit.signing import (
    AddressWitness,
    FileWitness,
    LastSignedFile,
    is_valid_signature,
    load_or_make,
    open_witness,
)
from comity.audit.verify import name_of
from comity.errors import Misconfigured, Unavailable


def test_a_key_is_made_once_and_is_its_owners_alone(tmp_path: Path) -> None:
    file = tmp_path / "below" / "journal.key"
    made = load_or_make(file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert load_or_make(file).key == made.key
    assert [each.name for each in file.parent.iterdir()] == ["journal.key"], "and nothing is left"
    assert made.key not in file.read_text()


def test_what_is_signed_is_verified_and_nothing_else(tmp_path: Path) -> None:
    signer = load_or_make(tmp_path / "journal.key")
    signature = signer.sign(b"data")
    assert is_valid_signature(signer.key, b"data", signature)
    assert not is_valid_signature(signer.key, b"date", signature)
    assert not is_valid_signature(signer.key, b"data", bytes(64))
    assert not is_valid_signature(load_or_make(tmp_path / "other.key").key, b"data", signature)
    for key in ("", "zz", "ab" * 31, "ff" * 32, "é"):
        assert not is_valid_signature(key, b"data", signature)
    assert not is_valid_signature(signer.key, b"data", signature[:-1])


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644])
def test_a_key_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    file = tmp_path / "journal.key"
    load_or_make(file)
    file.chmod(mode)
    with pytest.raises(Misconfigured, match="chmod 600"):
        load_or_make(file)


@pytest.mark.parametrize("said", ["", "no key", "comity-audit-key-1:", "ab" * 32, "\xff"])
def test_a_file_that_holds_something_else_is_refused_and_kept(tmp_path: Path, said: str) -> None:
    file = tmp_path / "journal.key"
    file.write_text(said, encoding="latin-1")
    file.chmod(0o600)
    with pytest.raises(Misconfigured, match="holds no audit log key"):
        load_or_make(file)
    assert file.read_text(encoding="latin-1") == said


def test_a_folder_that_cannot_be_is_told_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Misconfigured, match="the key of the audit log"):
        load_or_make(tmp_path / "file" / "journal.key")


@pytest.mark.integration
def test_of_many_processes_that_make_it_at_once_all_have_the_same(tmp_path: Path) -> None:
    file = tmp_path / "journal.key"
    program = (
        "import sys; from pathlib import Path; from comity.audit.signing import load_or_make;"
        "sys.stdin.read(1); print(load_or_make(Path(sys.argv[1])).key)"
    )
    started = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(file)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    told = {process.communicate("x", timeout=50)[0].strip() for process in started}
    assert told == {load_or_make(file).key}
    assert os.listdir(tmp_path) == ["journal.key"]  # noqa: PTH208  # names alone


def test_node_is_named_after_its_key_and_nothing_tells_the_secret(tmp_path: Path) -> None:
    signer = load_or_make(tmp_path / "journal.key")
    assert name_of(signer.key).startswith("n-")
    assert repr(signer) == f"Signer({signer.key!r})"


AT = datetime(2026, 11, 15, tzinfo=UTC)

type Answer = Callable[[web.Request], Awaitable[web.Response]]


def _checkpoint(seq: int) -> ChainCheckpoint:
    return ChainCheckpoint("node", seq, bytes(32), AT, "ab" * 32, bytes(64))


def _numbers(said: bytes) -> list[int]:
    rows = [export.row_of(line).checkpoint for line in said.splitlines()]
    return [row.seq for row in rows if row is not None]


async def test_a_file_is_added_to_and_never_begun_anew(tmp_path: Path) -> None:
    file = tmp_path / "checkpoints.jsonl"
    for seq in (1, 2):
        witness = open_witness(str(file))
        await witness.write(_checkpoint(seq))
        await witness.close()
    assert _numbers(file.read_bytes()) == [1, 2]
    assert stat.S_IMODE(file.stat().st_mode) & 0o007 == 0


async def test_many_at_once_stand_one_after_the_other(tmp_path: Path) -> None:
    file = tmp_path / "checkpoints.jsonl"
    one, other = open_witness(str(file)), open_witness(str(file))
    await asyncio.gather(*(one.write(_checkpoint(seq)) for seq in range(50)))
    await asyncio.gather(*(each.write(_checkpoint(99)) for each in (one, other) for _ in range(20)))
    assert _numbers(file.read_bytes()) == [*range(50), *[99] * 40]


async def test_a_file_that_was_moved_away_is_begun_again(tmp_path: Path) -> None:
    file = tmp_path / "checkpoints.jsonl"
    witness = open_witness(str(file))
    await witness.write(_checkpoint(1))
    file.rename(tmp_path / "moved")
    await witness.write(_checkpoint(2))
    assert _numbers(file.read_bytes()) == [2]


async def test_a_pipe_takes_them_as_a_stream_and_is_told_where_nobody_reads(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    witness = open_witness(str(pipe))
    with pytest.raises(OSError, match="No such device"):
        await witness.write(_checkpoint(1))
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        await witness.write(_checkpoint(2))
        await witness.write(_checkpoint(3))
        assert _numbers(os.read(reader, 65536)) == [2, 3]
    finally:
        os.close(reader)


async def test_what_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="Is a directory"):
        await FileWitness(tmp_path / "folder").write(_checkpoint(1))
    with pytest.raises(OSError, match="No space"):
        await FileWitness(Path("/dev/full")).write(_checkpoint(1))


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
        await witness.write(_checkpoint(1))
        await witness.write(_checkpoint(2))
        with pytest.raises(Unavailable, match="status 503"):
            await witness.write(_checkpoint(3))
        await witness.close()

    await _served(take, tell)
    assert [each[:2] for each in heard] == [("POST", "/take?from=here")] * 3
    assert _numbers(b"".join(each[2] for each in heard)) == [1, 2, 3]


async def test_an_address_where_nobody_is_is_an_error() -> None:
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1 did not take a checkpoint"):
        await AddressWitness("http://127.0.0.1:1/x").write(_checkpoint(1))


@pytest.mark.parametrize("where", ["http://", "https:///x", "http://[", "/nowhere/at/all", "/tmp"])
def test_what_is_neither_a_file_nor_an_address_is_refused(where: str) -> None:
    with pytest.raises(Misconfigured):
        open_witness(where)


def test_the_last_checkpoint_of_each_chain_is_kept_beside_the_key(tmp_path: Path) -> None:
    kept = LastSignedFile(tmp_path / "key.last-signed")
    assert kept.read("node") is None
    for seq in (1, 2):
        asyncio.run(kept.write(_checkpoint(seq)))
    beside = _checkpoint(7)._replace(node="node~2")
    asyncio.run(kept.write(beside))
    assert kept.read("node") == _checkpoint(2)
    assert kept.read("node~2") == beside
    assert kept.read("another") is None
    moved = Path(kept.set_aside("node"))
    assert _numbers(moved.read_bytes()) == [2]
    assert kept.read("node") is None
    (tmp_path / "key.last-signed").write_bytes(b"{")
    assert kept.read("node") is None
    asyncio.run(kept.close())
