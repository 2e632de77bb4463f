"""Accounts whose rows, keys or backups are not those with which they were stored."""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from comity.accounts.messages import OAuthClientCredentials
from comity.accounts.model import SHARED, AccountKey, AccountPolicy, AccountState
from comity.mcp.actors import LOCAL_OPERATOR, Actor
from comity.secrets.providers.local import LocalKeyService
from comity.secrets.service import SecretService
from comity.storage import sqlite
from tests.accounts.account_node import ANA, BEN, AccountNode, an_account_node
from tests.accounts.hostile_server import (
    HostileAnswer,
    HostilePort,
    HostileRequest,
    HostileServer,
    a_hostile_port,
    json_answer,
)
from tests.support.opened_stores import Store

pytestmark = pytest.mark.integration

OLD, NEW, FOREIGN = (LocalKeyService(name, name.encode() * 8) for name in ("olds", "news", "fore"))
PEOPLE = (ANA, BEN)
ROUNDS = 12


@pytest.fixture
def hostile() -> Generator[HostilePort]:
    with a_hostile_port() as made:
        yield made


@dataclass
class Rotation:
    """An issuer that gives each refresh token once, and ends an account that shows a spent one."""

    server: HostileServer
    shown: Counter[str] = field(default_factory=Counter[str])

    def answer(self, request: HostileRequest) -> HostileAnswer:
        token = request.form.get("refresh_token", "")
        if token:
            self.shown[token] += 1
        if self.shown[token] > 1:
            return json_answer({"error": "invalid_grant"}, 400)
        return self.server.give_token(request)


def policy_of(server: HostileServer) -> AccountPolicy:
    return AccountPolicy(server.name, f"{server.url}/mcp", "each")


@asynccontextmanager
async def a_node(store: Store, *keys: LocalKeyService) -> AsyncGenerator[AccountNode]:
    async with an_account_node(await store.open(), *keys) as node:
        yield node


def record_nothing(actor: Actor, details: Mapping[str, object]) -> None:
    return


async def rotate(node: AccountNode) -> tuple[int, int]:
    """Reseal every value. Return how many were resealed, and how many no key could open."""
    service = SecretService(node.sealer, node.records.sealed_stores, record_nothing)
    resealed = unreadable = 0
    cursor = ""
    while True:
        step = await service.rotate(LOCAL_OPERATOR, cursor)
        resealed, unreadable = resealed + step.resealed, unreadable + step.unreadable
        cursor = step.next
        if not cursor:
            return resealed, unreadable


async def tokens_of(store: Store, policy: AccountPolicy, *keys: LocalKeyService) -> list[bool]:
    """Whether a node with these keys has a token of each person."""
    async with a_node(store, *keys) as node:
        node.configure(policy)
        keyed = [AccountKey(policy.server, person) for person in PEOPLE]
        return [bool(await node.tokens.token_for(each)) for each in keyed]


async def test_accounts_follow_the_rotation_of_keys(
    store: Store, hostile: HostilePort, caplog: pytest.LogCaptureFixture
) -> None:
    server = hostile["live"]
    policy = policy_of(server)
    async with a_node(store, OLD) as node:
        node.configure(policy)
        await node.connect("live", ANA)
    # A node with the new key writes beside the rows of the old one.
    async with a_node(store, NEW, OLD) as node:
        node.configure(policy)
        await node.connect("live", BEN)
    assert await tokens_of(store, policy, NEW, OLD) == [True, True]
    # A removed key takes the accounts with it that it sealed.
    caplog.set_level(logging.WARNING)
    assert await tokens_of(store, policy, NEW) == [False, True]
    assert f"The tokens of {ANA} at 'live' cannot be unsealed" in caplog.text
    async with a_node(store, NEW, OLD) as node:
        assert await rotate(node) == (2, 0)  # an account, and the client of the gateway
    assert await tokens_of(store, policy, NEW) == [True, True]
    assert await tokens_of(store, policy, OLD) == [False, False]
    assert not [secret for secret in server.private if secret in caplog.text]


async def test_a_node_with_another_key_gets_a_new_token_of_its_client(
    store: Store, hostile: HostilePort
) -> None:
    server = hostile["live"]
    policy = AccountPolicy(
        "live",
        f"{server.url}/mcp",
        "shared",
        issuer=server.url,
        client=OAuthClientCredentials("comity", "secret"),
        grant="client_credentials",
    )
    key = AccountKey("live", SHARED)
    async with a_node(store, OLD) as node:
        node.configure(policy)
        first = await node.tokens.token_for(key)
    async with a_node(store, FOREIGN) as node:
        node.configure(policy)
        second = await node.tokens.token_for(key)
    assert first
    assert second
    assert first != second


async def test_a_backup_holds_no_token_and_opens_with_its_own_key_only(
    in_file: Store, hostile: HostilePort, tmp_path: Path
) -> None:
    server = hostile["live"]
    policy = policy_of(server)
    async with a_node(in_file, OLD) as node:
        node.configure(policy)
        for person in PEOPLE:
            await node.connect("live", person)
        copies = sqlite.back_up(in_file.url, (), tmp_path / "backup")
    everything = b"".join(each.read_bytes() for each in copies)
    assert server.private
    assert not [secret for secret in server.private if secret.encode() in everything]
    restored = Store(f"sqlite:///{copies[-1]}", in_file.product, in_file.opened)
    assert await tokens_of(restored, policy, FOREIGN) == [False, False]
    assert await tokens_of(restored, policy, OLD) == [True, True]


async def test_a_backup_from_before_a_rotation_needs_the_key_of_that_time(
    in_file: Store, hostile: HostilePort, tmp_path: Path
) -> None:
    policy = policy_of(hostile["live"])
    async with a_node(in_file, OLD) as node:
        node.configure(policy)
        for person in PEOPLE:
            await node.connect("live", person)
        copies = sqlite.back_up(in_file.url, (), tmp_path / "backup")
    async with a_node(in_file, NEW, OLD) as node:
        assert await rotate(node) == (3, 0)  # two accounts, and the client of the gateway
    restored = Store(f"sqlite:///{copies[-1]}", in_file.product, in_file.opened)
    assert await tokens_of(restored, policy, NEW) == [False, False]
    # Nothing was lost by the attempt: with the old key beside the new one, all are resealed.
    async with a_node(restored, NEW, OLD) as node:
        assert await rotate(node) == (3, 0)
    assert await tokens_of(restored, policy, NEW) == [True, True]


async def test_an_older_value_of_a_row_ends_the_account_and_tells_nobody(
    store: Store, hostile: HostilePort
) -> None:
    """A database that was set back holds spent tokens. Only their issuer sees them."""
    server = hostile["live"]
    server.token = Rotation(server).answer
    async with a_node(store, OLD) as node:
        node.configure(policy_of(server))
        old = await node.connect("live")
        assert await node.renew("live")
        await store.run("UPDATE comity_accounts SET sealed = :sealed", sealed=old.sealed)
        async with a_node(store, OLD) as restarted:
            restarted.configure(policy_of(server))
            assert await restarted.renew("live") is None
            found = await restarted.records.accounts.get(old.key)
            assert found is not None
            assert (found.state, found.sealed) == (AccountState.SIGN_IN_NEEDED, b"")


async def test_two_nodes_refresh_once_and_lose_no_token(store: Store, hostile: HostilePort) -> None:
    server = hostile["live"]
    rotation = Rotation(server)
    server.token = rotation.answer
    async with AsyncExitStack() as stack:
        nodes = [
            await stack.enter_async_context(an_account_node(await store.open(), OLD, name=name))
            for name in ("one", "two")
        ]
        for node in nodes:
            node.configure(policy_of(server))
        account = await nodes[0].connect("live")
        for _ in range(ROUNDS):
            refused = [await each.tokens.token_for(account.key) for each in nodes]
            assert len(set(refused)) == 1
            before = sum(rotation.shown.values())
            calls = (each.tokens.token_for(account.key, refused[0] or "") for each in nodes * 5)
            renewed = set(await asyncio.gather(*calls))
            assert len(renewed) == 1
            assert renewed <= server.valid
            assert sum(rotation.shown.values()) == before + 1
        assert set(rotation.shown.values()) == {1}
