"""Builds the sealer of stored credentials, and the API of its keys, from the settings."""

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress

from comity.app.records import RecordStores
from comity.app.settings import Settings
from comity.audit.events import AuditType
from comity.audit.log import AuditLog
from comity.config.secret_files import read_secret, variable_text
from comity.errors import Misconfigured
from comity.http.api import ApiRoutes
from comity.http.client.proxies import proxies_from
from comity.mcp.actors import Actor
from comity.secrets.api import SecretsApi
from comity.secrets.backends import open_key_services
from comity.secrets.envelope import EnvelopeSealer
from comity.secrets.service import SecretService


def build_sealer(
    settings: Settings, pepper: bytes, environ: Mapping[str, str] = os.environ
) -> EnvelopeSealer:
    """Return the sealer of stored credentials. A remote key service is not asked yet.

    Raises Misconfigured if a key on this machine cannot be read.
    """
    network = settings.network
    proxies = proxies_from(network.proxy, network.no_proxy, environ)
    return EnvelopeSealer(open_key_services(settings.secrets.keys, pepper, proxies, environ))


def secret_routes(sealer: EnvelopeSealer, records: RecordStores, audit_log: AuditLog) -> ApiRoutes:
    """Return the routes for the keys of every store that holds sealed values."""

    def record(actor: Actor, details: Mapping[str, object]) -> None:
        audit_log.record(AuditType.SECRETS_ROTATED, actor, details=details)

    return SecretsApi(SecretService(sealer, records.sealed_stores, record)).routes


def key_texts(settings: Settings, environ: Mapping[str, str] = os.environ) -> Iterator[str]:
    """Yield the keys of files and variables, and the secrets of the configuration, to hide them."""
    yield from settings.secret_values
    for kind, _, place in (name.partition(":") for name in settings.secrets.keys):
        # The sealer reports a key that cannot be read.
        with suppress(Misconfigured):
            if kind == "file":
                yield read_secret(place, "").decode("latin-1")
            if kind == "env":
                yield (variable_text(place, environ) or "").strip()
