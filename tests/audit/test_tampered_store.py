"""An intruder who may change the whole database, and has no signing key, changes the audit log."""

from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from comity.audit.chain import entry_hash
from comity.audit.export import AuditReader
from comity.audit.signing import is_valid_signature
from comity.audit.verify import ExportVerifier, VerificationReport
from tests.support.journals_rules import BEGAN, PUBLIC, Journal
from tests.support.opened_stores import Store

pytestmark = pytest.mark.integration

SIZE, MIDDLE = 40, 20
LATER = BEGAN + timedelta(hours=1)
NAMES = {
    "ENTRIES": "comity_audit_entries",
    "CHECKPOINTS": "comity_audit_checkpoints",
    "SEGMENTS": "comity_audit_segments",
    "COLUMNS": "at, trace, call, type, actor, server, tool, result, body, hash",
}

type Attack = Callable[[Store, Journal], Awaitable[None]]


async def run(store: Store, statement: str, **values: object) -> None:
    for short, name in NAMES.items():
        statement = statement.replace(short, name)
    await store.run(statement, **values)


def running(*statements: str, **values: object) -> Attack:
    async def attack(store: Store, _: Journal) -> None:
        for statement in statements:
            named = {name: each for name, each in values.items() if f":{name}" in statement}
            await run(store, statement, **named)

    return attack


async def rewrite(store: Store, journal: Journal) -> None:
    """Blame another principal, and hash all entries behind it anew."""
    before = journal.lines[MIDDLE - 2].hash
    for line in journal.lines[MIDDLE - 1 :]:
        body = line.body.replace(line.actor.encode(), b"agent:else")
        before = entry_hash(before, line.node.encode(), line.seq, body)
        await run(
            store,
            "UPDATE ENTRIES SET actor = 'agent:else', body = :body, hash = :hash WHERE seq = :seq",
            body=body,
            hash=before,
            seq=line.seq,
        )


async def rewrite_unsigned(store: Store, journal: Journal) -> None:
    await rewrite(store, journal)
    await run(store, "DELETE FROM CHECKPOINTS WHERE seq >= 20")


async def rewrite_with_old_signatures(store: Store, journal: Journal) -> None:
    """Let the signatures of the true entries stand over the hashes of the false ones."""
    await rewrite(store, journal)
    await run(
        store,
        "UPDATE CHECKPOINTS SET hash = (SELECT hash FROM ENTRIES"
        " WHERE ENTRIES.seq = CHECKPOINTS.seq)",
    )


def swap(one: int, other: int) -> Attack:
    return running(
        "UPDATE ENTRIES SET seq = 1000 WHERE seq = :one",
        "UPDATE ENTRIES SET seq = :one WHERE seq = :other",
        "UPDATE ENTRIES SET seq = :other WHERE seq = 1000",
        one=one,
        other=other,
    )


SEAL = (
    "INSERT INTO SEGMENTS (node, first, last, before, hash, sealed_at)"
    " SELECT node, 1, 20, hash, hash, at FROM ENTRIES WHERE seq = 20"
)
ATTACKS: dict[str, Attack] = {
    "the actor of an entry": running("UPDATE ENTRIES SET actor = 'agent:else' WHERE seq = 7"),
    "the result of an entry": running("UPDATE ENTRIES SET result = 'DENIED' WHERE seq = 7"),
    "the server of an entry": running("UPDATE ENTRIES SET server = 'other' WHERE seq = 7"),
    "the tool of an entry": running("UPDATE ENTRIES SET tool = 'other' WHERE seq = 7"),
    "the type of an entry": running("UPDATE ENTRIES SET type = 'KEY_ISSUED' WHERE seq = 7"),
    "the call of an entry": running("UPDATE ENTRIES SET call = 'c-9' WHERE seq = 7"),
    "the trace of an entry": running("UPDATE ENTRIES SET trace = 'ffff' WHERE seq = 7"),
    "the time of an entry": running(
        "UPDATE ENTRIES SET at = (SELECT max(at) FROM ENTRIES) WHERE seq = 7"
    ),
    "the body of an entry": running(
        "UPDATE ENTRIES SET body = (SELECT body FROM ENTRIES WHERE seq = 8) WHERE seq = 7"
    ),
    "the hash of an entry": running(
        "UPDATE ENTRIES SET hash = (SELECT hash FROM ENTRIES WHERE seq = 8) WHERE seq = 7"
    ),
    "an entry is removed": running("DELETE FROM ENTRIES WHERE seq = 20"),
    "the first entry is removed": running("DELETE FROM ENTRIES WHERE seq = 1"),
    "the first entries are removed": running("DELETE FROM ENTRIES WHERE seq <= 20"),
    "the last entry is removed": running("DELETE FROM ENTRIES WHERE seq = 40"),
    "the end is removed with its signatures": running(
        "DELETE FROM ENTRIES WHERE seq > 20",
        "DELETE FROM CHECKPOINTS WHERE seq > 20",
    ),
    "everything is removed": running("DELETE FROM ENTRIES", "DELETE FROM CHECKPOINTS"),
    "the first entries are sealed": running(SEAL, "DELETE FROM ENTRIES WHERE seq <= 20"),
    "the later numbers move up": running(
        "DELETE FROM ENTRIES WHERE seq = 39",
        "UPDATE ENTRIES SET seq = 39 WHERE seq = 40",
    ),
    "two neighbours are exchanged": swap(7, 8),
    "two distant entries are exchanged": swap(3, 33),
    "an entry is repeated at the end": running(
        "INSERT INTO ENTRIES (node, seq, COLUMNS)"
        " SELECT node, 41, COLUMNS FROM ENTRIES WHERE seq = 7"
    ),
    "an entry is copied into a chain of its own": running(
        "INSERT INTO ENTRIES (node, seq, COLUMNS)"
        " SELECT 'other', 1, COLUMNS FROM ENTRIES WHERE seq = 1"
    ),
    "the chain has another node": running(
        "UPDATE ENTRIES SET node = 'other'",
        "UPDATE CHECKPOINTS SET node = 'other'",
    ),
    "a signature is of another entry": running(
        "UPDATE CHECKPOINTS SET signature = (SELECT signature FROM CHECKPOINTS"
        " ORDER BY seq LIMIT 1)"
    ),
    "a signature is of another key": running(
        "UPDATE CHECKPOINTS SET key = :other", other="ab" * 32
    ),
    "a signature has another time": running(
        "UPDATE CHECKPOINTS SET at = (SELECT max(at) FROM ENTRIES)"
    ),
    "the end is rewritten": rewrite,
    "the end is rewritten without signatures": rewrite_unsigned,
    "the end is rewritten under the old signatures": rewrite_with_old_signatures,
}


async def allow_everything(store: Store) -> None:
    if not store.is_file:
        await run(store, "ALTER TABLE ENTRIES DISABLE TRIGGER ALL")
        return
    for (name,) in await store.run("SELECT name FROM sqlite_master WHERE type = 'trigger'"):
        await store.run(f'DROP TRIGGER "{name}"')


async def verified(store: Store, journal: Journal) -> VerificationReport:
    reader = AuditReader((await store.open()).audit_log, clock=lambda: LATER)
    proof = ExportVerifier(is_valid_signature, trusted=[PUBLIC], outside=journal.checkpoints)
    async for line in reader.export():
        proof.take(line)
    return proof.finish()


async def test_every_change_of_the_stored_audit_log_is_found(store: Store) -> None:
    journal = Journal.of(SIZE)
    records = await store.open()
    await records.audit_log.open(journal.lines[0].node)
    await records.audit_log.append(journal.lines)
    for checkpoint in journal.checkpoints:
        await records.audit_log.add_checkpoint(checkpoint)
    await records.audit_log.close()
    await allow_everything(store)
    tables = ("ENTRIES", "CHECKPOINTS", "SEGMENTS")
    for table in tables:
        await run(store, f"CREATE TABLE kept_{table} AS SELECT * FROM {table}")  # noqa: S608
    assert (await verified(store, journal)).is_whole
    missed = list[str]()
    for name, attack in ATTACKS.items():
        await attack(store, journal)
        if (await verified(store, journal)).is_whole:
            missed.append(name)
        for table in tables:
            await run(store, f"DELETE FROM {table}")  # noqa: S608
            await run(store, f"INSERT INTO {table} SELECT * FROM kept_{table}")  # noqa: S608
    assert not missed
    assert (await verified(store, journal)).is_whole
