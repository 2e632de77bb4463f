"""Wiring of the sign-in: sessions, providers, pages and routes from the settings."""

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version

from comity.app.records import GatewaySnapshot
from comity.app.settings import Settings
from comity.approvals.model import ANSWER_VERB
from comity.audit.log import AuditLog
from comity.config.secret_files import read_secret, variable_text
from comity.errors import Misconfigured
from comity.http.api import ApiRoutes
from comity.http.asgi import HttpEndpoint
from comity.identity.authentication import Authenticator, TokenIssuer
from comity.identity.login.api import GatewayDescription, SessionsApi
from comity.identity.login.pages import LoginPages
from comity.identity.login.rules import SessionLifetimes
from comity.identity.login.service import IdTokenExchange, LoginKeys, LoginService, SignInProvider
from comity.identity.login.sessions import BrowserSessions
from comity.mcp.actors import Actor
from comity.policy.grants import Effect, verb_covers
from comity.policy.snapshot import GrantSnapshot
from comity.secrets.model import Sealer
from comity.servers.wiring import proxies_of


@dataclass(frozen=True, slots=True)
class LoginComponents:
    """The sign-in of a gateway."""

    service: LoginService
    id_tokens: IdTokenExchange
    sealer: Sealer
    routes: ApiRoutes
    endpoints: dict[str, HttpEndpoint]


def make_browser_sessions(
    settings: Settings, snapshot: GatewaySnapshot, audit: AuditLog
) -> BrowserSessions:
    identity = settings.identity
    lifetimes = SessionLifetimes(identity.session_lifetime, identity.session_idle_timeout)
    return BrowserSessions(
        snapshot.records.sessions, snapshot.sessions, snapshot.refresh, lifetimes, audit=audit
    )


def build_login(
    settings: Settings,
    snapshot: GatewaySnapshot,
    authenticator: Authenticator,
    sessions: BrowserSessions,
    audit: AuditLog,
    sealer: Sealer,
    operator_token: str = "",
) -> LoginComponents:
    """Build the sign-in. Raises Misconfigured if a secret or an extra is missing."""
    service = LoginService(
        sessions,
        snapshot.records.parties,
        snapshot.refresh,
        LoginKeys(authenticator.pepper, operator_token if authenticator.is_local else ""),
        make_providers(settings),
        audit=audit,
        sealer=sealer,
    )
    node = settings.cluster.node or platform.node()
    about = GatewayDescription(version("comity"), node, settings.identity.mode)
    api = SessionsApi(
        service,
        snapshot.parties.get,
        lambda actor, verb: has_grant(snapshot.grants, actor, verb),
        about,
    )
    pages = LoginPages(service, authenticator, settings.identity.public_url)
    id_tokens = IdTokenExchange(
        sessions,
        service.providers,
        sealer,
        lambda party: authenticator.find_actor(party) is not None,
    )
    return LoginComponents(service, id_tokens, sealer, api.routes, pages.endpoints)


def has_grant(grants: GrantSnapshot, actor: Actor, verb: str) -> bool:
    """Return whether an actor may use a verb on everything or, for answers, on anything.

    The console uses it to choose its buttons. Each request is decided by itself.
    """
    if verb.startswith(actor.excluded):
        return False
    if grants.authorize(actor, verb, "", "").effect is Effect.ALLOW:
        return True
    return verb == ANSWER_VERB and any(
        grant.effect is Effect.ALLOW and verb_covers(grant.verb, verb)
        for index in grants.access.indexes_of(actor)
        for grant in index.grants
    )


def make_providers(
    settings: Settings, environ: Mapping[str, str] = os.environ
) -> Sequence[SignInProvider]:
    """Build the providers at which people sign in. Raises Misconfigured."""
    issuers = [each for each in settings.identity.issuers if each.client_id]
    if not issuers:
        return ()
    try:
        # The import is here because the dependency is an optional extra.
        from comity.identity.login.openid import OpenIdProvider
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] not in ("jwt", "cryptography"):
            raise
        raise Misconfigured(
            "to let people sign in, install what that needs: pip install 'comity[oauth]'"
        ) from None
    return [
        OpenIdProvider(
            issuer,
            _read_client_secret(issuer, environ),
            settings.identity.clock_skew,
            proxies_of(settings),
            needs_issuer=len(issuers) > 1,
        )
        for issuer in issuers
    ]


def _read_client_secret(issuer: TokenIssuer, environ: Mapping[str, str]) -> str:
    """Return the secret of the gateway at an issuer. A public client has none."""
    if issuer.client_secret_file:
        return read_secret(
            issuer.client_secret_file, "identity.issuers.client_secret_file"
        ).decode()
    if not issuer.client_secret_env:
        return ""
    found = variable_text(issuer.client_secret_env, environ)
    if not found:
        raise Misconfigured(
            f"identity.issuers: the variable {issuer.client_secret_env} is not set; set it to the "
            "client secret"
        )
    return found
