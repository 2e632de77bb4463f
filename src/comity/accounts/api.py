"""API of accounts: which there are, and how one ends."""

from datetime import datetime
from typing import TypedDict

from comity.accounts.access import AccountAccess
from comity.accounts.model import SHARED, Account, AccountKey, AccountState
from comity.approvals.model import SIGN_IN_PATH
from comity.errors import NOTHING_HERE, MalformedMessage
from comity.http.api import ApiRequest, ApiRoute, ApiRoutes, Permission
from comity.http.api_input import EmptyBody, EmptyQuery
from comity.mcp.actors import Actor


class AccountView(TypedDict):
    """One account, without its tokens, and what the caller may do with it."""

    id: str
    server: str
    owner: str
    state: str
    issuer: str
    scopes: list[str]
    missing_scopes: list[str]
    connected_at: datetime
    connected_by: str
    expires_at: datetime | None
    is_refreshable: bool
    may_disconnect: bool


class AccountServerView(TypedDict):
    """A server that demands a sign-in, and whether the caller has an account there.

    `path` is the page where a person who `may_connect` signs in.
    """

    server: str
    mode: str
    connected: bool
    may_connect: bool
    path: str


class AccountList(TypedDict):
    """The accounts that the caller may see, and the servers where it can connect one."""

    accounts: list[AccountView]
    servers: list[AccountServerView]


class DisconnectedAccount(TypedDict):
    """An account that has ended, and whether its issuer confirmed that its tokens ended too."""

    id: str
    server: str
    owner: str
    revoked: bool


class AccountsApi:
    """Routes of accounts."""

    def __init__(self, access: AccountAccess) -> None:
        self._access = access
        self._accounts = access.accounts

    @property
    def routes(self) -> ApiRoutes:
        own, end = Permission.OWN_RECORDS, "/api/accounts/{account}/disconnect"
        return (
            ApiRoute("GET", "/api/accounts", own, self._list, EmptyQuery),
            ApiRoute("POST", end, own, self._disconnect, EmptyBody),
        )

    async def _list(self, request: ApiRequest[EmptyQuery]) -> AccountList:
        actor, tokens = request.actor, self._accounts.tokens
        seen = [each for each in tokens.accounts.values() if self._access.may_see(actor, each)]
        servers = [
            self._server(server, actor)
            for server in sorted(tokens.policies)
            if self._accounts.mode_of(server) != "none" and self._access.may_know(actor, server)
        ]
        return {
            "accounts": [
                _view(each, self._access.may_disconnect(actor, each))
                for each in sorted(seen, key=lambda each: each.key)
            ],
            "servers": servers,
        }

    def _server(self, server: str, actor: Actor) -> AccountServerView:
        mode = self._accounts.mode_of(server)
        key = AccountKey(server, SHARED if mode == "shared" else actor.party)
        found = self._accounts.tokens.find(key)
        # With another grant, the gateway gets the token by itself.
        has_sign_in = self._accounts.tokens.policies[server].grant == "authorization_code"
        return {
            "server": server,
            "mode": mode,
            "connected": found is not None and found.state is AccountState.CONNECTED,
            "may_connect": has_sign_in and self._access.connect_refusal(actor, key) is None,
            "path": f"{SIGN_IN_PATH}{server}",
        }

    async def _disconnect(self, request: ApiRequest[EmptyBody]) -> DisconnectedAccount:
        id, tokens = request.path["account"], self._accounts.tokens
        account = next((each for each in tokens.accounts.values() if each.id == id), None)
        if account is None or not self._access.may_see(request.actor, account):
            raise MalformedMessage(f"there is no account {id!r:.80}", NOTHING_HERE)
        self._access.require_disconnect(request.actor, account)
        revoked = await self._accounts.disconnect(account.key, request.actor.party)
        return {
            "id": id,
            "server": account.server,
            "owner": account.owner,
            "revoked": revoked,
        }


def _view(account: Account, may_disconnect: bool) -> AccountView:
    return {
        "id": account.id,
        "server": account.server,
        "owner": account.owner,
        "state": account.state,
        "issuer": account.issuer,
        "scopes": list(account.scopes),
        "missing_scopes": list(account.missing_scopes),
        "connected_at": account.connected_at,
        "connected_by": account.connected_by,
        "expires_at": account.expires_at,
        "is_refreshable": account.is_refreshable,
        "may_disconnect": may_disconnect,
    }
