"""Key services and secret sources by their names in the settings, and reading of one secret."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from comity.errors import Misconfigured, Unavailable
from comity.http.client.proxies import ProxySettings, proxies_from
from comity.secrets.model import KeyService, SecretSource
from comity.secrets.providers import local
from comity.secrets.providers.aws import AwsKeyService, AwsSecretSource
from comity.secrets.providers.azure import AzureKeyService, AzureSecretSource
from comity.secrets.providers.gcp import GoogleKeyService, GoogleSecretSource
from comity.secrets.providers.local import (
    EnvironmentSecretSource,
    FileSecretSource,
    KeyringSecretSource,
    LocalKeyService,
)
from comity.secrets.providers.vault import VaultKeyService, VaultSecretSource
from comity.secrets.settings import PEPPER

MAX_SECRET_LENGTH: Final = 64 * 1024

type _Environ = Mapping[str, str]

_KEY_SERVICES: Final[Mapping[str, Callable[[str, ProxySettings, _Environ], KeyService]]] = {
    "file": lambda place, _proxies, _environ: local.read_file_key(place),
    "env": lambda place, _proxies, environ: local.read_variable_key(place, environ),
    "keyring": lambda place, _proxies, _environ: local.read_keyring_key(place),
    "vault": VaultKeyService,
    "aws": AwsKeyService,
    "gcp": GoogleKeyService,
    "azure": lambda place, proxies, _environ: AzureKeyService(place, proxies),
}

_SECRET_SOURCES: Final[Mapping[str, Callable[[str, ProxySettings, _Environ], SecretSource]]] = {
    "env": lambda _place, _proxies, environ: EnvironmentSecretSource(environ),
    "file": lambda place, _proxies, _environ: FileSecretSource(place),
    "keyring": lambda place, _proxies, _environ: KeyringSecretSource(place),
    "vault": VaultSecretSource,
    "aws": AwsSecretSource,
    "gcp": GoogleSecretSource,
    "azure": lambda place, proxies, _environ: AzureSecretSource(place, proxies),
}


def open_key_services(
    names: Sequence[str], pepper: bytes, proxies: ProxySettings, environ: _Environ
) -> list[KeyService]:
    """Return the key services of the settings. No request leaves this machine.

    Raises Misconfigured if a key on this machine cannot be read, or an extra is missing.
    """
    return [_open_key(name, pepper, proxies, environ) for name in names]


def _open_key(name: str, pepper: bytes, proxies: ProxySettings, environ: _Environ) -> KeyService:
    if name == PEPPER:
        return LocalKeyService(PEPPER, pepper)
    kind, _, place = name.partition(":")
    return _KEY_SERVICES[kind](place, proxies, environ)


def open_secret_sources(
    names: Sequence[str], proxies: ProxySettings, environ: _Environ
) -> list[SecretSource]:
    """Return the secret sources of the settings. Raises Misconfigured."""
    return [
        _SECRET_SOURCES[kind](place, proxies, environ)
        for kind, _, place in (name.partition(":") for name in names)
    ]


async def read_first(name: str, sources: Sequence[SecretSource]) -> str | None:
    """Return a secret from the first source that has it.

    Raises Misconfigured. A source that does not answer is an error, and later ones are not asked:
    they may hold another value.
    """
    for source in sources:
        try:
            found = await source.read(name)
        except Unavailable as problem:
            raise Misconfigured(f"the secret {name} cannot be read: {problem}") from None
        if found:
            if len(found) > MAX_SECRET_LENGTH:
                raise Misconfigured(f"the secret {name} of {source.name} is too long")
            return found
    return None


def read_secret_blocking(name: str, names: Sequence[str], environ: _Environ) -> str | None:
    """Return a secret for a configuration, outside of any event loop. Raises Misconfigured."""
    sources = open_secret_sources(names, proxies_from("", (), environ), environ)
    # The caller may be in a thread that has a loop.
    with ThreadPoolExecutor(1, "secrets") as thread:
        return thread.submit(asyncio.run, read_first(name, sources)).result()
