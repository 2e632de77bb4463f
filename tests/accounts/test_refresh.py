"""Refreshes of accounts: no refresh token is spent twice, and no new one is lost."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from comity.accounts.issuers import AuthorizationServers, ServerAuthorization
from comity.accounts.messages import (
    IssuerMetadata,
    OAuthClientCredentials,
    ResourceMetadata,
    TokenAnswer,
)
from comity.accounts.model import (
    SHARED,
    Account,
    AccountKey,
    AccountPolicy,
    AccountState,
    AccountStore,
    AccountTokens,
)
from comity.accounts.service import AccountService
from comity.accounts.sign_in import AccountSelector, ConnectionAccount
from comity.accounts.tokens import LEASE, LEASE_MARGIN, AccountTokenSource
from comity.errors import Unavailable
from comity.policy.grants import GrantSet
from comity.policy.snapshot import GrantSnapshot
from tests.support.clock import ManualClock
from tests.support.inline_store import inline_records

NOW = datetime(2026, 11, 15, tzinfo=UTC)
KEY = AccountKey("notes", "person:ana")
CLIENT = OAuthClientCredentials("comity")
POLICY = AccountPolicy("notes", "https://notes.example.org/mcp", "each")
FOUND = ServerAuthorization(
    ResourceMetadata(POLICY.url, ("https://issuer.example.org",)),
    IssuerMetadata("https://issuer.example.org", "https://issuer.example.org/a", "https://t.org"),
)


@dataclass
class RotatingIssuer:
    """Gives a new refresh token each time, and ends the account when it sees a spent one."""

    valid: str = "refresh-0"
    spent: list[str] = field(default_factory=list[str])
    count: int = 0
    is_revoked: bool = False
    error: str = ""
    clients: list[object] = field(default_factory=list[object])
    began: asyncio.Event = field(default_factory=asyncio.Event)
    may_answer: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.may_answer.set()

    async def request_token(
        self, _: object, client: object, fields: Mapping[str, str], __: object
    ) -> TokenAnswer | str:
        self.clients.append(client)
        shown = fields.get("refresh_token", self.valid)
        self.is_revoked |= shown in self.spent
        if self.error or self.is_revoked:
            return self.error or "invalid_grant"
        self.count += 1
        self.spent.append(shown)
        self.valid = f"refresh-{self.count}"
        answer = TokenAnswer(f"access-{self.count}", self.valid, 3600)
        self.began.set()
        await self.may_answer.wait()
        return answer


type OnFind = Callable[[], Awaitable[None]]


@dataclass
class Servers:
    """Knows one issuer."""

    oauth: RotatingIssuer
    on_find: OnFind | None = None

    def forget(self, _: str) -> None:
        return

    async def client_for(self, *_: object) -> OAuthClientCredentials:
        return CLIENT

    async def find(self, *_: object) -> ServerAuthorization:
        if self.on_find is not None:
            await self.on_find()
        return FOUND


class OpenSealer:
    """Seals nothing, and can be held back while it unseals."""

    def __init__(self) -> None:
        self.began, self.may_unseal = asyncio.Event(), asyncio.Event()
        self.may_unseal.set()

    async def seal(self, plain: bytes, context: str) -> bytes:
        return plain

    async def unseal(self, sealed: bytes, context: str) -> bytes | None:
        self.began.set()
        await self.may_unseal.wait()
        return sealed


class Nodes:
    """Nodes with one store and one issuer, and an expired account."""

    def __init__(self) -> None:
        self.store: AccountStore = inline_records().accounts
        self.issuer = RotatingIssuer()
        self.clock = ManualClock(NOW)

    def make_node(
        self,
        name: str,
        policy: AccountPolicy = POLICY,
        sealer: OpenSealer | None = None,
        on_find: OnFind | None = None,
        clock: ManualClock[datetime] | None = None,
    ) -> AccountTokenSource:
        node = AccountTokenSource(
            self.store,
            sealer or OpenSealer(),
            cast("AuthorizationServers", Servers(self.issuer, on_find)),
            name,
            clock=clock or self.clock,
        )
        node.policies[policy.server] = policy
        return node

    async def add_account(self, key: AccountKey = KEY) -> None:
        account = Account(
            *key,
            POLICY.url,
            FOUND.issuer.issuer,
            CLIENT.client_id,
            ("read",),
            AccountState.CONNECTED,
            NOW,
            key.owner,
            expires_at=NOW,
            is_refreshable=True,
        )
        await self.make_node("first").keep(account, AccountTokens("access-0", "refresh-0", CLIENT))

    async def state(self, key: AccountKey = KEY) -> AccountState | None:
        found = await self.store.get(key)
        return None if found is None else found.state


async def test_a_node_that_read_an_account_before_another_refreshed_it_reads_it_again() -> None:
    nodes, slow = Nodes(), OpenSealer()
    await nodes.add_account()
    one, other = nodes.make_node("one", sealer=slow), nodes.make_node("other")
    slow.may_unseal.clear()
    waiting = asyncio.create_task(one.token_for(KEY))
    await slow.began.wait()
    assert await other.token_for(KEY) == "access-1"
    slow.may_unseal.set()
    assert await waiting == "access-1"
    assert not nodes.issuer.is_revoked


async def test_a_demand_for_scopes_during_a_refresh_loses_neither() -> None:
    nodes = Nodes()
    await nodes.add_account()
    one, other = nodes.make_node("one"), nodes.make_node("other")
    nodes.issuer.may_answer.clear()
    waiting = asyncio.create_task(one.token_for(KEY))
    await nodes.issuer.began.wait()
    await other.require_scopes(KEY, ("read", "write"))
    # The lease still belongs to the node that refreshes.
    account = await nodes.store.get(KEY)
    assert account is not None
    assert not await nodes.store.lease_refresh(account, "other", NOW, NOW)
    nodes.issuer.may_answer.set()
    assert await waiting == "access-1"
    stored = await nodes.store.get(KEY)
    assert stored is not None
    assert (stored.missing_scopes, nodes.issuer.is_revoked) == (("write",), False)
    assert one.find(KEY) == stored


async def test_a_cancelled_call_does_not_lose_the_token_that_its_refresh_gets() -> None:
    nodes = Nodes()
    await nodes.add_account()
    node = nodes.make_node("one")
    nodes.issuer.may_answer.clear()
    waiting = asyncio.create_task(node.token_for(KEY))
    await nodes.issuer.began.wait()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    again = asyncio.create_task(node.token_for(KEY))
    nodes.issuer.may_answer.set()
    assert await again == "access-1"
    assert (nodes.issuer.count, nodes.issuer.is_revoked) == (1, False)


async def test_a_shutdown_stores_the_token_of_a_refresh_that_runs() -> None:
    nodes = Nodes()
    await nodes.add_account()
    node = nodes.make_node("one")
    nodes.issuer.may_answer.clear()
    waiting = asyncio.create_task(node.token_for(KEY))
    await nodes.issuer.began.wait()
    waiting.cancel()
    closing = asyncio.create_task(node.close())
    await asyncio.gather(waiting, return_exceptions=True)
    nodes.issuer.may_answer.set()
    await closing
    assert await nodes.make_node("other").token_for(KEY) == "access-1"
    assert nodes.issuer.count == 1


async def test_a_shutdown_does_not_wait_for_a_refresh_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nodes = Nodes()
    await nodes.add_account()
    node = nodes.make_node("one")
    nodes.issuer.may_answer.clear()
    waiting = asyncio.create_task(node.token_for(KEY))
    await nodes.issuer.began.wait()
    monkeypatch.setattr("comity.accounts.tokens.CLOSE_TIMEOUT", timedelta(milliseconds=10))
    await node.close()
    with pytest.raises(Unavailable, match="stopping"):
        await waiting


async def test_discovery_takes_no_time_of_the_lease() -> None:
    nodes = Nodes()
    await nodes.add_account()
    account = await nodes.store.get(KEY)
    assert account is not None
    free: list[bool] = []

    async def look_at_the_lease() -> None:
        free.append(await nodes.store.lease_refresh(account, "other", NOW, NOW))

    assert await nodes.make_node("one", on_find=look_at_the_lease).token_for(KEY) == "access-1"
    assert free == [True]


async def test_a_client_of_another_issuer_that_is_configured_meanwhile_is_not_used() -> None:
    nodes = Nodes()
    await nodes.add_account()
    client = replace(CLIENT, secret="secret of the other issuer")

    async def configure() -> None:
        changed = replace(POLICY, client=client, issuer="https://other.example.org")
        node.policies[POLICY.server] = changed

    node = nodes.make_node("one", on_find=configure)
    await node.token_for(KEY)
    assert client not in nodes.issuer.clients


async def test_a_refresh_is_given_up_before_its_lease_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nodes = Nodes()
    await nodes.add_account()
    monkeypatch.setattr("comity.accounts.tokens.LEASE", LEASE_MARGIN + timedelta(milliseconds=10))
    nodes.issuer.may_answer.clear()
    with pytest.raises(Unavailable, match="in time"):
        await nodes.make_node("one").token_for(KEY)
    account = await nodes.store.get(KEY)
    assert account is not None
    assert await nodes.store.lease_refresh(account, "other", NOW, NOW)


@pytest.mark.parametrize("seconds", [-30, 30])
async def test_a_node_whose_clock_is_tolerated_spends_no_token_of_another(seconds: int) -> None:
    """The bus takes messages of nodes whose clocks differ by half a minute."""
    nodes = Nodes()
    await nodes.add_account()
    other = ManualClock(NOW + timedelta(seconds=seconds))
    one, two = nodes.make_node("one"), nodes.make_node("two", clock=other)
    nodes.issuer.may_answer.clear()
    waiting = asyncio.create_task(one.token_for(KEY, "access-0"))
    await nodes.issuer.began.wait()
    # As long as the first node may wait for its answer.
    other.now += LEASE - LEASE_MARGIN
    second = asyncio.create_task(two.token_for(KEY, "access-0"))
    await asyncio.sleep(0)
    account = await nodes.store.get(KEY)
    assert account is not None
    assert not await nodes.store.lease_refresh(account, "two", other.now, other.now)
    nodes.issuer.may_answer.set()
    assert await waiting == "access-1"
    assert await second == "access-1"
    assert (nodes.issuer.count, nodes.issuer.is_revoked) == (1, False)


async def test_a_client_that_is_refused_for_a_while_keeps_its_accounts() -> None:
    nodes = Nodes()
    await nodes.add_account()
    node = nodes.make_node("one", replace(POLICY, client=CLIENT, issuer=FOUND.issuer.issuer))
    nodes.issuer.error = "invalid_client"
    with pytest.raises(Unavailable, match="client_secret"):
        await node.token_for(KEY)
    assert await nodes.state() is AccountState.CONNECTED
    nodes.issuer.error = ""
    assert await node.token_for(KEY) == "access-1"


async def test_an_account_ends_when_the_issuer_forgot_its_registered_client() -> None:
    nodes = Nodes()
    await nodes.add_account()
    nodes.issuer.error = "invalid_client"
    assert await nodes.make_node("one").token_for(KEY) is None
    assert await nodes.state() is AccountState.SIGN_IN_NEEDED


async def test_client_credentials_recover_when_the_client_is_accepted_again() -> None:
    nodes, shared = Nodes(), AccountKey("notes", SHARED)
    policy = replace(POLICY, mode="shared", client=CLIENT, grant="client_credentials")
    node = nodes.make_node("one", policy)
    assert await node.token_for(shared) == "access-1"
    nodes.clock.now += timedelta(hours=2)
    for error in ("invalid_client", "invalid_grant"):
        nodes.issuer.error = error
        with pytest.raises(Unavailable, match="client_secret"):
            await node.token_for(shared)
    nodes.issuer.error = ""
    assert await node.token_for(shared) == "access-2"
    # The stored state of such an account does not matter.
    known = await nodes.store.get(shared)
    assert known is not None
    await nodes.store.put(replace(known, state=AccountState.SIGN_IN_NEEDED, sealed=b""))
    assert await nodes.make_node("other", policy).token_for(shared) == "access-3"


async def a_list_reader(nodes: Nodes) -> ConnectionAccount:
    """The account of the gateway's own connection, after one person has connected an account."""
    tokens = nodes.make_node("one", replace(POLICY, mode="auto"))
    service = AccountService(
        tokens, cast("Any", None), cast("Any", None), b"key", identity_grants=cast("Any", None)
    )
    await nodes.add_account()
    await tokens.load()
    grants = GrantSnapshot(GrantSet())
    selector = AccountSelector(service, grants, lambda: [KEY.owner], grants.generation)
    return ConnectionAccount(selector, KEY.server, None)


async def test_a_late_refusal_of_a_call_is_not_mended_with_the_account_of_another_person() -> None:
    account = await a_list_reader(Nodes())
    with pytest.raises(Unavailable, match="sign-in") as refused:
        await account.renew(b"", 401, "Bearer", is_for_caller=True)
    assert refused.value.challenge == "Bearer"
    # The lists are still read with that account.
    assert await account.renew(b"", 401, "Bearer") == b"Bearer access-1"
    assert account.authorization() == b"Bearer access-1"
    assert account.authorization(is_for_caller=True) == b""


async def test_a_server_cannot_make_the_list_of_missing_scopes_grow_without_end() -> None:
    nodes = Nodes()
    await nodes.add_account()
    node = nodes.make_node("one")
    for scopes in (tuple(map(str, range(200))), tuple("x" * 190 + str(each) for each in range(20))):
        await node.require_scopes(KEY, scopes[:5])
        with pytest.raises(Unavailable, match="more scopes"):
            await node.require_scopes(KEY, scopes)
    account = await nodes.store.get(KEY)
    assert account is not None
    assert len(account.missing_scopes) == 10


async def test_a_sign_in_whose_cookie_no_browser_keeps_says_so() -> None:
    nodes = Nodes()
    for count, is_refused in ((100, False), (400, True)):
        policy = replace(POLICY, client=CLIENT, scopes=tuple(f"scope{n:02}" for n in range(count)))
        tokens = nodes.make_node("one", policy)
        servers = cast("AuthorizationServers", Servers(nodes.issuer))
        service = AccountService(
            tokens, servers, cast("Any", None), b"key", identity_grants=cast("Any", None)
        )
        begin = service.begin_sign_in(
            KEY.server, KEY.owner, KEY.owner, "https://comity.example.org"
        )
        if is_refused:
            with pytest.raises(Unavailable, match="too many scopes"):
                await begin
        else:
            assert len((await begin).cookie) < 4_000
