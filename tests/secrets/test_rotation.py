"""Rotation of keys in SQLite and PostgreSQL, beside writers, on two nodes, and after a kill."""

import asyncio
import itertools
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta

import pytest

from comity.app.records import RecordStores
from comity.errors import MalformedMessage
from comity.events.webhooks.model import secret_context
from comity.identity.login.model import BrowserSession, SignInMethod, hint_context
from comity.mcp.actors import LOCAL_OPERATOR, Actor
from comity.secrets.envelope import EnvelopeSealer
from comity.secrets.model import SealedRecord
from comity.secrets.providers.local import LocalKeyService
from comity.secrets.service import RotationStep, SecretService
from tests.contracts.test_webhook_records import HOOK, NOW
from tests.support.opened_stores import Store

OLD = LocalKeyService("file:/old", b"o" * 32)
NEW = LocalKeyService("file:/new", b"n" * 32)
PAGE, HOOKS = 8, 20
NONE = dict.fromkeys(("webhooks", "sessions", "accounts", "account clients"), 0)
SESSIONS = 5


class Node:
    """One node: its records, its keys, and the audit entries of its rotations."""

    def __init__(self, records: RecordStores, *keys: LocalKeyService) -> None:
        self.records = records
        self.sealer = EnvelopeSealer(keys)
        self.audit: list[Mapping[str, object]] = []
        self.service = SecretService(self.sealer, records.sealed_stores, self._record, PAGE)

    def _record(self, actor: Actor, details: Mapping[str, object]) -> None:
        assert actor == LOCAL_OPERATOR
        self.audit.append(details)

    async def rotate(self, *, every: bool = False) -> RotationStep:
        total, cursor = RotationStep(), ""
        while True:
            step = await self.service.rotate(LOCAL_OPERATOR, cursor, every=every)
            total.resealed += step.resealed
            total.unreadable += step.unreadable
            cursor = step.next
            if not cursor:
                return total

    async def put_hook(self, id: str, *secrets: str) -> None:
        context = secret_context(id)
        sealed = [await self.sealer.seal(each.encode(), context) for each in secrets]
        await self.records.webhooks.put(replace(HOOK, id=id, sealed=tuple(sealed)))

    async def secrets_of(self, id: str) -> list[bytes | None]:
        found = await self.records.webhooks.get(id)
        assert found is not None
        return [await self.sealer.unseal(each, secret_context(id)) for each in found.sealed]

    async def counts(self) -> dict[str, dict[str, int]]:
        return {each.name: dict(each.values) for each in await self.service.list_keys()}


async def fill(node: Node) -> None:
    for number in range(HOOKS):
        await node.put_hook(f"sub_{number:03}", f"secret-{number}", f"before-{number}")
    for number in range(SESSIONS):
        party, issuer = f"person:p{number}", "https://login.example.org"
        hint = await node.sealer.seal(b"id token", hint_context(party, issuer, "subject"))
        at, ends = NOW, NOW + timedelta(days=1)
        session = BrowserSession(
            f"s{number}", party, SignInMethod.OPENID, b"d", b"", at, at, at, ends
        )
        session = replace(session, issuer=issuer, subject="subject", hint=hint)
        await node.records.sessions.put(session)


async def test_two_nodes_reseal_every_value_while_others_write(store: Store) -> None:
    before = Node(await store.open(), OLD)
    await fill(before)
    one, two = (
        Node(await store.open(), NEW, OLD),
        Node(await store.open(), NEW, OLD),
    )
    written: dict[str, str] = {}
    is_over = asyncio.Event()

    async def write() -> None:
        for number in itertools.count():
            id = f"sub_{number * 7 % HOOKS:03}"
            written[id] = f"written-{number}"
            # A node that has not been restarted yet still seals with the old key.
            await (one, before)[number % 2 and number < 10].put_hook(id, written[id])
            if is_over.is_set() and number > 3:
                return

    writing = asyncio.ensure_future(write())
    await asyncio.gather(one.rotate(), two.rotate())
    is_over.set()
    await writing
    await one.rotate()

    assert set(await one.counts()) == {"file:/new", "file:/old"}
    found = await one.counts()
    assert found["file:/old"] == {}
    assert found["file:/new"]["sessions"] == SESSIONS
    after = Node(await store.open(), NEW)
    for number in range(HOOKS):
        id = f"sub_{number:03}"
        expected = [f"secret-{number}", f"before-{number}"]
        expected = [written[id]] if id in written else expected
        assert await after.secrets_of(id) == [each.encode() for each in expected]
    assert await after.service.count_unreadable() == NONE
    assert len(written) > 3
    told = str(one.audit + two.audit)
    assert "'resealed'" in told
    assert "secret-" not in told


async def test_a_rotation_that_was_killed_goes_on(store: Store) -> None:
    await fill(Node(await store.open(), OLD))
    killed = Node(await store.open(), NEW, OLD)
    replaced = 0
    replace_sealed = killed.records.webhooks.replace_sealed

    async def replace_some(record: SealedRecord, sealed: bytes) -> bool:
        nonlocal replaced
        replaced += 1
        if replaced > 12:
            raise asyncio.CancelledError
        return await replace_sealed(record, sealed)

    killed.records.webhooks.replace_sealed = replace_some
    with pytest.raises(asyncio.CancelledError):
        await killed.rotate()
    halfway = Node(await store.open(), NEW, OLD)
    assert (await halfway.counts())["file:/new"] == {"webhooks": 12}
    # Values of both keys can be read meanwhile.
    assert await halfway.service.count_unreadable() == NONE
    done = await halfway.rotate()
    assert (done.resealed, done.unreadable) == (2 * HOOKS + SESSIONS - 12, 0)
    assert (await halfway.counts())["file:/old"] == {}
    assert (await halfway.rotate()).resealed == 0
    assert (await halfway.rotate(every=True)).resealed == 2 * HOOKS + SESSIONS


async def test_a_value_of_an_unknown_key_is_counted_and_kept(in_file: Store) -> None:
    foreign = Node(await in_file.open(), LocalKeyService("other", b"x" * 32))
    await foreign.put_hook("sub_1", "secret of another key")
    node = Node(await in_file.open(), NEW, OLD)
    done = await node.rotate()
    assert (done.resealed, done.unreadable) == (0, 1)
    assert (await node.counts())["unknown"] == {"webhooks": 1}
    assert await node.service.count_unreadable() == {**NONE, "webhooks": 1}
    assert await foreign.secrets_of("sub_1") == [b"secret of another key"]
    with pytest.raises(MalformedMessage, match="cursor"):
        await node.service.rotate(LOCAL_OPERATOR, "nowhere/x")


async def test_a_value_that_is_copied_to_another_row_cannot_be_read_there(in_file: Store) -> None:
    """Whoever can write to the database gains no secret of another principal by that."""
    node = Node(await in_file.open(), NEW)
    await node.put_hook("sub_1", "secret of ana")
    await node.put_hook("sub_2", "secret of bea")
    ana = await node.records.webhooks.get("sub_1")
    assert ana is not None
    await node.records.webhooks.put(replace(HOOK, id="sub_2", sealed=ana.sealed))
    assert await node.secrets_of("sub_2") == [None]
