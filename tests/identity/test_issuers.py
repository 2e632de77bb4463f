"""The authorization servers in a configuration: read whole, or refused with what to do."""

from pathlib import Path

import pytest

from comity.errors import Misconfigured
from comity.identity.authentication import TokenIssuer
from comity.identity.settings import ALGORITHMS
from comity.mcp.actors import PrincipalKind
from tests.support.cases import loop_over
from tests.support.writing import from_text

NEEDED = 'issuer = "https://login.example.org"\naudience = "https://gateway.example.org"\n'


def read(tmp_path: Path, text: str) -> tuple[TokenIssuer, ...]:
    return from_text(tmp_path, f"[[identity.issuers]]\n{text}").identity.issuers


def test_an_issuer_and_an_audience_are_enough(tmp_path: Path) -> None:
    (issuer,) = read(tmp_path, NEEDED)
    assert issuer == TokenIssuer(
        "https://login.example.org", "https://gateway.example.org", principal_prefix="person:"
    )
    assert set(issuer.algorithms) < set(ALGORITHMS)


def test_everything_of_an_issuer_can_be_said(tmp_path: Path) -> None:
    (issuer,) = read(
        tmp_path,
        NEEDED + 'jwks_url = "http://127.0.0.1:9/keys"\nrequired_scopes = ["tools"]\n'
        'principal_claim = "email"\nemail_is_verified = true\nprincipal_prefix = "corp/"\n'
        'algorithms = ["EdDSA"]\nkind = "agent"\ngroups_claim = "realm_access.roles"\n',
    )
    assert issuer.jwks_url == "http://127.0.0.1:9/keys"
    assert (issuer.required_scopes, issuer.principal_claim) == (("tools",), "email")
    assert issuer.email_is_verified
    assert (issuer.principal_prefix, issuer.algorithms) == ("corp/", ("EdDSA",))
    assert issuer.kind is PrincipalKind.AGENT
    assert issuer.groups_claim == "realm_access.roles"


@loop_over(
    ("text", "told"),
    [
        ('issuer = "https://a.org"', "needs its audience"),
        ('audience = "x"', "needs its issuer"),
        ('issuer = "http://a.org"\naudience = "x"', r"http:// only for localhost"),
        ('issuer = "https://u:p@a.org"\naudience = "x"', "must be as https://"),
        ('issuer = "https://a.org/?x"\naudience = "x"', "must be as https://"),
        (NEEDED + 'algorithms = ["HS256"]', "must be one of: RS256"),
        (NEEDED + 'algorithms = ["none"]', "must be one of: RS256"),
        (NEEDED + "algorithms = []", "names no algorithm"),
        (NEEDED + 'kind = "system"', "must be one of: agent, person"),
        (NEEDED + 'jwks = "https://a.org"', "did you mean 'jwks_url'"),
        (NEEDED + 'principal_claim = "a b"', "the name of a claim"),
        (NEEDED + 'groups_claim = "a b"', "the name of a claim"),
        (NEEDED + 'principal_prefix = "group:"', "names groups in grants"),
        (NEEDED + 'required_scopes = ["a b"]', "a scope"),
        (NEEDED + f"[[identity.issuers]]\n{NEEDED}", "appears twice"),
        (
            NEEDED + '[[identity.issuers]]\nissuer = "https://b.org"\naudience = "x"',
            "two issuers need different values of principal_prefix",
        ),
    ],
)
def test_a_mistake_about_an_issuer_is_named(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(Misconfigured, match=told):
        read(tmp_path, text)


def test_the_prefix_of_provisioned_users_is_one_of_people(tmp_path: Path) -> None:
    assert from_text(tmp_path, "").identity.scim == {}
    text = '[identity.scim]\nprincipal_prefix = "{}"\n'
    found = from_text(tmp_path, text.format("corp/person:")).identity.scim
    assert found == {"principal_prefix": "corp/person:"}
    for wrong in ("", "person", "system:", "server:", "agent:", "group:", "*:", "a b:", "Person:"):
        with pytest.raises(Misconfigured, match="as person:"):
            from_text(tmp_path, text.format(wrong))
