"""Rules of access to accounts: to see, connect and disconnect them."""

from comity.accounts.model import SHARED, Account, AccountKey
from comity.accounts.service import AccountService
from comity.errors import ACCESS_DENIED, NOTHING_HERE, MalformedMessage
from comity.mcp.actors import ADMIN_READ, ADMIN_WRITE, Actor, PrincipalKind
from comity.policy.grants import Effect
from comity.policy.snapshot import PolicyEngine


class AccountAccess:
    """The rules of access to accounts. A person has its own; the shared one is the operators'."""

    def __init__(self, accounts: AccountService, policy_engine: PolicyEngine) -> None:
        self.accounts = accounts
        self._policy_engine = policy_engine

    def may_see(self, actor: Actor, account: Account) -> bool:
        is_own = bool(account.owner) and account.owner == actor.party
        return is_own or self._is_allowed(actor, ADMIN_READ, account.server)

    def may_know(self, actor: Actor, server: str) -> bool:
        return self._policy_engine.may_know_server(actor, server)

    def own_key(self, actor: Actor, server: str) -> AccountKey:
        """Return the account that a person connects at a server. Raises MalformedMessage."""
        mode = self.accounts.mode_of(server)
        if mode == "none" or not self.may_know(actor, server):
            raise MalformedMessage(
                f"no server {server!r:.80} demands a sign-in of you", NOTHING_HERE
            )
        return AccountKey(server, SHARED if mode == "shared" else actor.party)

    def connect_refusal(self, actor: Actor, key: AccountKey) -> str | None:
        """Return why an actor may not connect this account, or None.

        An account of a person is connected by that person alone. No other can plant one there.
        """
        if actor.kind is not PrincipalKind.PERSON or actor.lacks_token:
            return "only a person who is signed in can do this"
        if key.owner == SHARED:
            is_allowed = self._is_allowed(actor, ADMIN_WRITE, key.server)
            return None if is_allowed else f"the shared account needs the grant {ADMIN_WRITE}"
        return None if key.owner == actor.party else "this is the account of another person"

    def require_connect(self, actor: Actor, key: AccountKey) -> None:
        """Raise MalformedMessage unless an actor may connect this account."""
        reason = self.connect_refusal(actor, key)
        if reason is not None:
            raise MalformedMessage(reason, ACCESS_DENIED)

    def may_disconnect(self, actor: Actor, account: Account) -> bool:
        """Return whether an actor is the owner of an account or administers its server."""
        is_own = bool(account.owner) and account.owner == actor.party and not actor.lacks_token
        return is_own or self._is_allowed(actor, ADMIN_WRITE, account.server)

    def require_disconnect(self, actor: Actor, account: Account) -> None:
        """Raise MalformedMessage unless an actor may disconnect this account."""
        if not self.may_disconnect(actor, account):
            raise MalformedMessage("this is the account of another person", ACCESS_DENIED)

    def _is_allowed(self, actor: Actor, verb: str, server: str) -> bool:
        return self._policy_engine.authorize(actor, verb, server, "*").effect is Effect.ALLOW
