"""`redaction/secrets.py`: what looks like a secret, or stands behind a word that says so."""

from comity.redaction.secrets import (
    hide_forms,
    is_hidden,
    strip_scheme,
    without_clear_secrets,
    without_secrets,
)
from tests.support.cases import loop_over

BODY = "Ab3dEf6hIj9lMn2pQr5tUv8xYz1"
PEM = (
    "-----BEGIN {0}PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\nMIIE+x/y=\n"
    "-----END {0}PRIVATE KEY-----"
)


def _hidden(text: str) -> tuple[str, list[str]]:
    found: list[str] = []

    def hide(secret: str) -> str:
        found.append(secret)
        return "[secret:0a1b2c3d]"

    return hide_forms(text, hide), found


@loop_over(
    "secret",
    [
        *(f"sk-{BODY}", f"sk-ant-api03-{BODY}", f"sk-proj-{BODY}", f"sk_live_{BODY}"),
        *(f"rk_test_{BODY}", f"whsec_{BODY}", f"ghp_{BODY}", f"ghs_{BODY}"),
        *(f"github_pat_{BODY}_{BODY}", f"glpat-{BODY}", f"gsk_{BODY}", f"xoxb-123-{BODY}"),
        *(f"xapp-1-{BODY}", "AKIAIOSFODNN7EXAMPLE", "ASIAIOSFODNN7EXAMPLE", f"AIza{BODY}{BODY}"),
        *(f"ATATT3{BODY}", f"AGE-SECRET-KEY-1{BODY.upper()}", f"ya29.{BODY}"),
        *("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln", f"npm_{BODY}", f"pypi-{BODY}"),
        *(f"cmty_prod_12345678901_{BODY}{BODY}", f"hf_{BODY}", f"hvs.{BODY}"),
        *(f"SG.{BODY}.{BODY}", f"dop_v1_{BODY}", f"dckr_pat_{BODY}", f"shpat_{BODY}"),
        *(f"sq0atp-{BODY}", f"lin_api_{BODY}", f"figd_{BODY}", f"rubygems_{BODY}", f"tvly-{BODY}"),
        *(PEM.format("RSA "), PEM.format(""), PEM.format("OPENSSH ")),
    ],
)
def test_each_kind_is_known_by_its_beginning(secret: str) -> None:
    said, found = _hidden(f'see "{secret}" there')
    assert found == [secret]
    assert said == 'see "[secret:0a1b2c3d]" there'


@loop_over(
    ("text", "secrets"),
    [
        ("Authorization: Bearer abc123def456", ["abc123def456"]),
        ("curl -H 'authorization: BEARER abc123def456'", ["abc123def456"]),
        ("Basic dXNlcjpwYXNz=", ["dXNlcjpwYXNz="]),
        ("postgres://ana:hunter2@db.example.org/x", ["hunter2"]),
        ("redis://:hunter2@db", ["hunter2"]),
        ("https://example.org/cb?access_token=hunter2&x=1", ["hunter2"]),
        ("password=hunter2 user=ana", ["hunter2"]),
        ("PASSWORD: hunter2", ["hunter2"]),
        ('{"password": "hunter 2", "user": "ana"}', ["hunter 2"]),
        ('{\\"password\\": \\"hunter2\\"}', ["hunter2"]),
        ("{'api_key': 'hunter2'}", ["hunter2"]),
        ("run --password hunter2 --user ana", ["hunter2"]),
        ("run --api-key=hunter2", ["hunter2"]),
        ("Cookie: sid=hunter2; theme=dark", ["sid=hunter2;"]),
        ("x-api-key: hunter2", ["hunter2"]),
        ('[{"name": "X-Api-Key", "value": "hunter2"}]', ["hunter2"]),
        ("['run', '--api-key', 'hunter2', 'x']", ["hunter2"]),
        ("DB_PASSWORD=hunter2;DB_USER=ana", ["hunter2;DB_USER=ana"]),
        ("q=token%3Dhunter2", ["hunter2"]),
        (
            "-----BEGIN PRIVATE KEY-----\nMIIE the end is cut",
            ["-----BEGIN PRIVATE KEY-----\nMIIE the end is cut"],
        ),
    ],
)
def test_each_is_known_by_what_stands_before_it(text: str, secrets: list[str]) -> None:
    said, found = _hidden(text)
    assert found == secrets
    assert "hunter2" not in said
    assert _hidden(said)[0] == said, "and what is hidden is not hidden again"


@loop_over(
    "text",
    [
        *("task-force-of-many-long-words", "risk-assessment-for-2026-and-later", "Basic knowledge"),
        *("/project/src/a_rather_long_file_name.py", "https://example.org:8080/a@b"),
        *("select * from t where id = 4", "max_tokens=4096", "ratio 16:9", "Bearer authentication"),
        *("-----BEGIN CERTIFICATE-----\nMIIE\n-----END CERTIFICATE-----", "a - b", "--verbose yes"),
        *('{"name": "Accept", "value": "x"}', "X-Api-Key, and more", "[secret] stays"),
        *("[secret:0a1b2c3d]", "password=[secret:0a1b2c3d]", ""),
    ],
)
def test_what_is_none_is_left_alone(text: str) -> None:
    assert _hidden(text) == (text, [])


def test_where_nobody_compares_them_secrets_are_hidden_all_alike() -> None:
    once = without_secrets(f"password=hunter2 and ghp_{BODY}")
    assert once == "password=[secret] and [secret]"
    assert without_secrets(once) == once


def test_a_credential_is_the_same_with_its_scheme_and_without() -> None:
    assert strip_scheme("Bearer abc123def456") == strip_scheme("abc123def456") == "abc123def456"
    assert is_hidden("[secret:0a1b2c3d]")
    assert not is_hidden("[secret:0a1b2c3d] and more")


@loop_over(
    "said",
    [
        "headers.Authorization: the variable TOKEN is not set; set it, or write ${TOKEN:-default}",
        "identity.pepper_file: /etc/pepper cannot be read: No such file or directory",
        "api_key: must be a text",
    ],
)
def test_a_sentence_of_our_own_keeps_its_words(said: str) -> None:
    assert without_clear_secrets(said) == said
    assert without_secrets("password: hunter2") == "password: [secret]"


@loop_over(
    "secret",
    ["sk-abcdefghijklmnopqrstuvwx", "Bearer abcdefgh12345678", "postgresql://me:hush@host/db"],
)
def test_what_is_a_secret_by_itself_is_hidden_in_every_sentence(secret: str) -> None:
    assert secret not in without_clear_secrets(f"the server said: {secret}")
