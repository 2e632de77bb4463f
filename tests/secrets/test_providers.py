"""Every key service and secret source, against a server that encrypts and checks requests."""

import os
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import override

import keyring
import pytest
from keyring.backend import KeyringBackend

from comity.errors import SECRETS_AWAY, Misconfigured, Unavailable
from comity.http.client.proxies import NO_PROXIES
from comity.secrets.backends import open_key_services, open_secret_sources, read_first
from comity.secrets.envelope import EnvelopeSealer
from comity.secrets.model import KeyService
from comity.secrets.providers.remote import require_extra
from tests.secrets.clouds import KEYS, SECRET, SOURCES, Clouds, running_clouds

DATA_KEY = bytes(range(32))
MATERIAL = "kYw3mP0q7nL2vX9sB4tZ8cF1hJ6dG5aR"


class OneKeyring(KeyringBackend):
    """A keyring in memory, as the keyring of a desktop."""

    priority = 1.0  # pyright: ignore[reportAssignmentType]

    def __init__(self) -> None:
        self.entries = {("comity", "key"): MATERIAL, ("comity", "DB_PASSWORD"): SECRET}

    @override
    def get_password(self, service: str, username: str) -> str | None:
        return self.entries.get((service, username))

    @override
    def set_password(self, service: str, username: str, password: str) -> None:
        self.entries[service, username] = password


@pytest.fixture(scope="module")
def shared_clouds() -> Generator[Clouds]:
    with running_clouds() as clouds:
        yield clouds


@pytest.fixture
def clouds(
    shared_clouds: Clouds, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Generator[Clouds]:
    for name, value in shared_clouds.environ(tmp_path).items():
        monkeypatch.setenv(name, value)
    before = keyring.get_keyring()
    keyring.set_keyring(OneKeyring())
    yield shared_clouds
    shared_clouds.is_down = False
    keyring.set_keyring(before)


def open_key(name: str) -> KeyService:
    return open_key_services([name], b"p" * 16, NO_PROXIES, os.environ)[0]


@pytest.mark.parametrize("kind", [*KEYS, "pepper", "file", "env", "keyring"])
async def test_a_key_service_opens_what_it_wrapped_and_nothing_else(
    kind: str, clouds: Clouds, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "key"
    file.write_text(MATERIAL + "\n")
    file.chmod(0o600)
    monkeypatch.setenv("SEALING_KEY", MATERIAL)
    local = {"file": f"file:{file}", "env": "env:SEALING_KEY", "keyring": "keyring:comity/key"}
    name = KEYS[kind](clouds) if kind in KEYS else local.get(kind, kind)
    key = open_key(name)
    assert key.name == name
    wrapped = await key.wrap(DATA_KEY)
    assert DATA_KEY not in wrapped
    assert await key.unwrap(wrapped) == DATA_KEY
    # Another process with the same settings opens it, too.
    again = open_key(name)
    assert again.id == key.id
    assert await again.unwrap(wrapped) == DATA_KEY
    middle = len(wrapped) - 8
    flipped = wrapped[:middle] + bytes([wrapped[middle] ^ 1]) + wrapped[middle + 1 :]
    for wrong in (flipped, wrapped[:-3], b"x", b"\xff" * 40):
        assert await key.unwrap(wrong) is None
    sealed = await EnvelopeSealer([key]).seal(b"plain", "context")
    assert await EnvelopeSealer([again]).unseal(sealed, "context") == b"plain"


@pytest.mark.parametrize("kind", KEYS)
async def test_a_remote_key_service_that_is_down_fails_with_its_name_and_no_secret(
    kind: str, clouds: Clouds
) -> None:
    name = KEYS[kind](clouds)
    key = open_key(name)
    wrapped = await key.wrap(DATA_KEY)
    clouds.is_down = True
    for call in (key.wrap(DATA_KEY), key.unwrap(wrapped)):
        with pytest.raises(Unavailable) as failed:
            await call
        assert failed.value.fault is SECRETS_AWAY
        assert name in str(failed.value)
        assert failed.value.__cause__ is None
        assert not [each for each in clouds.credentials if each in str(failed.value)]


async def test_a_remote_service_that_does_not_listen_is_unavailable(
    clouds: Clouds, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VAULT_ADDR", "http://127.0.0.1:9")
    with pytest.raises(Unavailable, match="vault:transit/comity does not answer"):
        await open_key("vault:transit/comity").wrap(DATA_KEY)


@pytest.mark.parametrize("kind", [*SOURCES, "file", "env", "keyring"])
async def test_a_source_reads_a_secret_by_its_name(
    kind: str, clouds: Clouds, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "secrets"
    folder.mkdir()
    (folder / "DB_PASSWORD").write_text(SECRET + "\n")
    (folder / "DB_PASSWORD").chmod(0o600)
    monkeypatch.setenv("DB_PASSWORD", SECRET)
    local = {"file": f"file:{folder}", "env": "env", "keyring": "keyring:comity"}
    name = SOURCES[kind](clouds) if kind in SOURCES else local[kind]
    found = open_secret_sources([name], NO_PROXIES, os.environ)
    assert await read_first("DB_PASSWORD", found) == SECRET
    assert await read_first("OTHER", found) is None
    assert SECRET not in repr(found)


async def test_a_source_that_is_down_is_not_passed_over(clouds: Clouds) -> None:
    """A later source may hold another value under the same name."""
    os.environ["DB_PASSWORD"] = "of the environment"
    try:
        sources = open_secret_sources(["vault:secret/comity", "env"], NO_PROXIES, os.environ)
        clouds.is_down = True
        with pytest.raises(Misconfigured, match="the secret DB_PASSWORD cannot be read: vault:"):
            await read_first("DB_PASSWORD", sources)
    finally:
        del os.environ["DB_PASSWORD"]


async def test_a_token_of_azure_goes_to_the_address_of_the_key_alone(clouds: Clouds) -> None:
    key = open_key(f"azure:{clouds.url}/keys/comity")
    value = (await key.wrap(DATA_KEY)).partition(b"\n")[2]
    before = len(clouds.calls)
    for address in (
        "http://127.0.0.1:1/keys/comity/1",
        f"{clouds.url}/keys/comity/1/../../other/2",
        f"{clouds.url}/keys/other/1",
        f"{clouds.url}/keys/comity",
    ):
        assert await key.unwrap(address.encode() + b"\n" + value) is None
    assert len(clouds.calls) == before


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("file:/nowhere/key", "cannot be read"),
        ("env:NOT_SET_ANYWHERE", "NOT_SET_ANYWHERE is not set"),
        ("env:SHORT_KEY", "fewer than 32 bytes"),
        ("keyring:comity/other", "there is no such key"),
        ("keyring:comity", "must be as keyring:comity/key"),
        ("vault:comity", "must be as vault:transit/comity"),
        ("aws:alias/comity", "with its ARN"),
        ("gcp:projects/p1", "write a key of Cloud KMS"),
        ("azure:https://v.vault.azure.net", "write a key of Azure"),
        ("azure:http://v.vault.azure.net/keys/k", "http:// only for localhost"),
    ],
)
def test_a_key_that_cannot_be_used_is_named_at_the_start(
    name: str, problem: str, clouds: Clouds, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHORT_KEY", "tooshort-58ab")
    with pytest.raises(Misconfigured) as failed:
        open_key(name)
    assert problem in str(failed.value)
    assert "tooshort" not in str(failed.value)


def test_no_package_of_a_vendor_is_loaded_before_it_is_needed() -> None:
    """A start of the gateway would take half a second longer."""
    loaded = "{'botocore', 'google.auth', 'azure.identity', 'keyring'} & sys.modules.keys()"
    program = f"import sys, comity.app.gateway, comity.secrets.backends; print({loaded})"
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True
    )
    assert ran.stdout.strip() == "set()"


def test_a_missing_extra_is_named_at_the_start() -> None:
    for module in ("not_installed_here", "not_installed_here.inner"):
        with pytest.raises(Misconfigured, match=r"pip install 'comity\[aws\]'"):
            require_extra("aws:key", module, "aws")


def test_vault_without_an_address_or_with_an_open_one_is_refused(
    clouds: Clouds, monkeypatch: pytest.MonkeyPatch
) -> None:
    for address, problem in (("", "set VAULT_ADDR"), ("http://vault.example.org", "https://")):
        monkeypatch.setenv("VAULT_ADDR", address)
        with pytest.raises(Misconfigured, match=problem):
            open_key("vault:transit/comity")
