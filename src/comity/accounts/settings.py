"""Settings of the accounts of one server: whose account, and this gateway's client there."""

from collections.abc import Mapping
from typing import Any, Final

from comity.accounts.messages import OAuthClientCredentials
from comity.accounts.model import AccountMode, AccountPolicy
from comity.config.document import ConfigValue
from comity.config.fields import (
    TEXT,
    FieldType,
    Members,
    members_of,
    one_of,
    table_of,
    text_list_type,
)

GRANTS: Final = ("authorization_code", "client_credentials", "id_jag", "token_exchange")

OAUTH_MEMBERS: Final[Members] = {
    "issuer": (TEXT, "the only authorization server to use; required with `client_id`"),
    "client_id": (TEXT, "the id of this gateway there, if it is registered already"),
    "client_secret": (TEXT, "the secret of that client, as ${VARIABLE}"),
    "scopes": (text_list_type(r"[!#-\[\]-~]{1,200}", "a scope, as repo"), "the scopes to request"),
    "grant": (
        one_of(*GRANTS),
        (
            "`authorization_code`: people sign in there; `client_credentials`: the gateway does; "
            "`id_jag`, `token_exchange`: the sign-in of people to Comity is enough"
        ),
    ),
    "identity_issuer": (
        TEXT,
        "where people sign in to Comity; default: the only issuer with a client_id",
    ),
    "audience": (TEXT, "for `token_exchange`: the audience to request, if the issuer wants one"),
}


def _read_oauth(written: ConfigValue) -> dict[str, Any]:
    found = members_of(written, OAUTH_MEMBERS)
    if reason := _conflict_in(found):
        raise written.wrong(reason)
    return found


def _conflict_in(oauth: Mapping[str, Any]) -> str:
    """Return why the members of a table do not fit together, or an empty text."""
    grant = oauth.get("grant", GRANTS[0])
    if grant == "id_jag" and not (oauth.get("client_id") and oauth.get("client_secret")):
        return "needs client_id and client_secret: those of Comity at the server's own issuer"
    if grant == "token_exchange" and oauth.keys() & {"client_id", "client_secret", "issuer"}:
        return "has a client or an issuer; a token exchange uses those of [[identity.issuers]]"
    if oauth.get("client_id") and not oauth.get("issuer") and grant != "token_exchange":
        return (
            "has a client_id and no issuer; set issuer to the authorization server that knows this "
            "client, so that no other server gets its secret"
        )
    if "audience" in oauth and grant != "token_exchange":
        return "has an audience, which only the grant token_exchange uses"
    if "identity_issuer" in oauth and grant not in ("id_jag", "token_exchange"):
        return "has an identity_issuer, which only the grants id_jag and token_exchange use"
    return ""


OAUTH_TYPE: Final = FieldType(_read_oauth, table_of(OAUTH_MEMBERS))


def account_policy(
    server: str, url: str, mode: AccountMode, oauth: Mapping[str, Any]
) -> AccountPolicy:
    """Return what the settings of a server say about its accounts."""
    client_id = oauth.get("client_id", "")
    client = OAuthClientCredentials(client_id, oauth.get("client_secret", ""))
    return AccountPolicy(
        server,
        url,
        mode,
        issuer=oauth.get("issuer", ""),
        client=client if client_id else None,
        scopes=tuple(oauth.get("scopes", ())),
        grant=oauth.get("grant", GRANTS[0]),
        identity_issuer=oauth.get("identity_issuer", ""),
        audience=oauth.get("audience", ""),
    )
