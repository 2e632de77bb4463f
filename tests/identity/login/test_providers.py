"""The published metadata of well-known providers, read with the code of the sign-in.

Each file in `providers/` has the members of the published document that a sign-in relies on.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from comity.errors import Unavailable
from comity.identity.login.messages import ProviderMetadata, read_metadata

FOLDER = Path(__file__).with_name("providers")
NAMES = sorted(file.stem for file in FOLDER.glob("*.json"))


def published(name: str) -> dict[str, Any]:
    return json.loads((FOLDER / f"{name}.json").read_bytes())


def read(name: str, **changed: Any) -> ProviderMetadata:
    document = {**published(name), **changed}
    return read_metadata(document, published(name)["issuer"])


def test_every_provider_of_the_guide_has_its_metadata_here() -> None:
    assert NAMES == ["entra", "google", "keycloak", "okta"]


@pytest.mark.parametrize("name", NAMES)
def test_the_metadata_of_a_provider_suffices_for_a_sign_in(name: str) -> None:
    found, said = read(name), published(name)
    assert found.authorization_endpoint == said["authorization_endpoint"]
    assert found.token_endpoint == said["token_endpoint"]
    assert found.jwks_uri == said["jwks_uri"]
    assert found.userinfo_endpoint == said["userinfo_endpoint"]
    assert "client_secret_basic" in found.client_auth_methods
    assert "RS256" in said["id_token_signing_alg_values_supported"]


@pytest.mark.parametrize(
    ("name", "signs_out", "names_itself"),
    [
        ("okta", True, False),
        ("entra", True, False),
        ("google", False, False),
        ("keycloak", True, True),
    ],
)
def test_the_guide_tells_what_a_provider_can_do(
    name: str, signs_out: bool, names_itself: bool
) -> None:
    found = read(name)
    assert bool(found.end_session_endpoint) is signs_out
    assert found.sends_issuer is names_itself


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "changed",
    [
        {"issuer": "https://login.microsoftonline.com/{tenantid}/v2.0"},
        {"token_endpoint": "http://169.254.169.254/token"},
        {"jwks_uri": "file:///etc/passwd"},
        {"jwks_uri": None},
        {"authorization_endpoint": "https://user:word@example.org/authorize"},
        {"authorization_endpoint": "https://example.org/a b"},
        {"authorization_endpoint": "https://example.org/a#b"},
        {"authorization_endpoint": ["https://example.org/"]},
        {"response_types_supported": ["id_token"]},
        {"code_challenge_methods_supported": ["plain"]},
        {"code_challenge_methods_supported": []},
    ],
    ids=str,
)
def test_unusable_metadata_is_refused(name: str, changed: dict[str, Any]) -> None:
    with pytest.raises(Unavailable):
        read(name, **changed)
