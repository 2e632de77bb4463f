"""The first administrator of an empty store, for `comity serve --bootstrap-admin`."""

import logging
from typing import Final

import click

from comity.app.gateway import GatewayParts
from comity.errors import Unavailable
from comity.identity.keys import KeyAdmin
from comity.identity.principals import ApiKey
from comity.mcp.actors import ADMIN_WRITE, LOCAL_OPERATOR
from comity.policy.grants import Effect, Grant, GrantSource, verb_covers

log = logging.getLogger(__name__)

ADMIN: Final = "person:admin"
"""The principal that the first key belongs to."""


async def bootstrap_admin(parts: GatewayParts) -> None:
    """Create an administrator in a store without keys, and print its key on standard output.

    It does nothing if a key exists or if a grant makes another principal an administrator.
    """
    try:
        key = await _create_admin(parts)
    except Unavailable as error:
        log.warning("cannot look for an administrator: %s", error)
        return
    if key is None:
        return
    # Unlike print, it flushes: the log of a container must show the key while the gateway runs.
    click.echo(
        f"Created the administrator {ADMIN}. Comity shows its key only now:\n{key}\n"
        "Clients send it as `Authorization: Bearer KEY`; commands read COMITY_KEY."
    )


async def _create_admin(parts: GatewayParts) -> str | None:
    """Return the new key, or None if there is an administrator. Raises Unavailable."""
    records = parts.snapshot.records
    if _has_other_admin(parts) or await records.keys.page(limit=1):
        return None
    # First the grant: a key is shown once, so it must be complete when it exists.
    await parts.policy_components.administration.put(
        LOCAL_OPERATOR,
        Grant(ADMIN, "*", "*", Effect.ALLOW, justification="first start of this store"),
    )
    audit = parts.audit_log_components.audit_log
    admin = KeyAdmin(records, parts.authenticator.pepper, parts.snapshot.refresh, audit=audit)
    issued = await admin.create_first(LOCAL_OPERATOR.party, ApiKey("", ADMIN, b"", "first start"))
    return None if issued is None else issued.whole


def _has_other_admin(parts: GatewayParts) -> bool:
    """Return whether a grant of the file or the store names another administrator."""
    return any(
        grant.effect is Effect.ALLOW
        and verb_covers(grant.verb, ADMIN_WRITE)
        and grant.source is not GrantSource.BUILT_IN
        for subject, index in parts.snapshot.grants.access.subjects.items()
        if subject != ADMIN
        for grant in index.grants
    )
