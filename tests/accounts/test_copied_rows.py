"""Rows of accounts and clients that somebody with access to the database copies or changes."""

import itertools
from collections.abc import Generator
from typing import Final

import pytest

from comity.accounts.issuers import redirect_uri_for
from comity.accounts.model import AccountKey, AccountPolicy
from tests.accounts.account_node import ANA, BEN, ORIGIN, AccountNode, an_account_node
from tests.accounts.hostile_server import HostilePort, a_hostile_port, json_answer
from tests.support.opened_stores import Store

pytestmark = pytest.mark.integration

ACCOUNTS: Final = tuple(itertools.product(("one", "two"), (ANA, BEN)))


@pytest.fixture
def hostile() -> Generator[HostilePort]:
    with a_hostile_port() as made:
        yield made


async def connect_all(hostile: HostilePort, node: AccountNode) -> None:
    """Connect two people at two servers that have one authorization server."""
    for name in ("one", "two"):
        server, issuer = hostile[name], hostile["issuer"].url
        document = {**server.resource_document(), "authorization_servers": [issuer]}
        server.resource = lambda _, document=document: json_answer(document)
        node.configure(AccountPolicy(name, f"{server.url}/mcp", "each"))
    for server, person in ACCOUNTS:
        await node.connect(server, person)


async def test_no_account_opens_in_the_row_of_another(store: Store, hostile: HostilePort) -> None:
    copied = "UPDATE comity_accounts SET sealed = :sealed WHERE server = :server AND owner = :owner"
    async with an_account_node(await store.open()) as node:
        await connect_all(hostile, node)
        accounts = [await node.records.accounts.get(AccountKey(*each)) for each in ACCOUNTS]
        for source, target in itertools.permutations(accounts, 2):
            assert source is not None
            assert target is not None
            await store.run(copied, sealed=source.sealed, server=target.server, owner=target.owner)
            async with an_account_node(node.records) as restarted:
                restarted.configure(*node.tokens.policies.values())
                assert await restarted.tokens.token_for(target.key) is None
            await store.run(copied, sealed=target.sealed, server=target.server, owner=target.owner)
        async with an_account_node(node.records) as restarted:
            restarted.configure(*node.tokens.policies.values())
            assert await restarted.tokens.token_for(AccountKey(*ACCOUNTS[0]))


@pytest.mark.parametrize("column", ["resource", "issuer"])
async def test_an_account_does_not_open_for_another_resource_or_issuer(
    store: Store, hostile: HostilePort, column: str
) -> None:
    async with an_account_node(await store.open()) as node:
        await connect_all(hostile, node)
        changed = {"resource": hostile["one"].origin, "issuer": hostile["evil"].url}[column]
        key = AccountKey("one", ANA)
        await store.run(
            f"UPDATE comity_accounts SET {column} = :changed"  # noqa: S608  # our own column
            " WHERE server = 'one' AND owner = 'person:ana'",
            changed=changed,
        )
        before = len(hostile["issuer"].requests_to("/token"))
        async with an_account_node(node.records) as restarted:
            restarted.configure(*node.tokens.policies.values())
            assert await restarted.tokens.token_for(key) is None
        assert len(hostile["issuer"].requests_to("/token")) == before
        assert not hostile["evil"].requests_to("/token")


async def test_the_client_of_one_server_does_not_open_for_another(
    store: Store, hostile: HostilePort
) -> None:
    """Each server has a client of its own, which keeps hostile issuers away from honest ones."""
    issuer = hostile["issuer"]
    async with an_account_node(await store.open()) as node:
        await connect_all(hostile, node)
        registered = len(issuer.requests_to("/register"))
        one, two = (redirect_uri_for(ORIGIN, each) for each in ("one", "two"))
        sealed = await node.records.accounts.get_client(issuer.url, one)
        await store.run(
            "UPDATE comity_account_clients SET sealed = :sealed WHERE redirect_uri = :two",
            sealed=sealed,
            two=two,
        )
        await node.connect("two")
        assert len(issuer.requests_to("/register")) == registered + 1
