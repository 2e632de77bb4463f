"""`redaction/secrets.py`: what looks like a secret, or stands behind a word that says so."""

from hypothesis import example, given, settings
from hypothesis import strategies as st

from comity.redaction.secrets import (
    hide_forms,
    is_hidden,
    is_plain,
    strip_scheme,
    without_clear_secrets,
    without_secrets,
)
from comity.toolkit.text import escape_unsafe
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


# Pieces that secrets consist of, near misses of them, and letters whose lower form is ASCII.
PIECES = st.sampled_from(
    [
        *("Bearer ", "bEaRer%20", "BASIC  ", "dpop\t", "DPoP ", "bear", "basi", "Ba\u017fic "),
        *("api_key=", "token: ", "--password ", "-p ", "%3d", "https://u:p@h/", "\u212aey="),
        *("sk-", "ghp_", "AKIA", "eyJ", "npm_", "SG.", "-----BEGIN PRIVATE KEY-----", "hf_"),
        *(BODY, BODY[:15], BODY[:16], "abcdefgh", "a" * 15, "a" * 16, "A.B-C_D" * 3, "word"),
        *(" ", "\n", "\u3000", "\u0130", "\ud800", "\x00", "ab\u0308" * 8, "\u0410" * 20, "+/"),
    ]
)


TEXTS = st.lists(PIECES | st.text(max_size=20), max_size=8).map("".join) | st.text(
    "aAbBeErRsSiIcCdDpPoO kK-_.=:%\x00\x7f\x80\r\n\t", max_size=60
)


@given(TEXTS)
@settings(max_examples=3_000, deadline=None)
@example("x" * 2_000 + f" ghp_{BODY}")
@example("x y " * 500 + "BEARER abcdefgh12")
@example("\ud800 " * 500 + f"hf_{BODY}")
@example("x y " * 500 + "\x7f")
@example("x y " * 500 + "\u202e")
@example("a=\x1b")
def test_a_plain_text_holds_no_secret_and_nothing_unsafe(text: str) -> None:
    if is_plain(text):
        assert _hidden(text) == (text, [])
        assert escape_unsafe(text) == text


@loop_over(
    "text",
    [
        *("a plain sentence of words", "the bear basks", "15 letters: no"[:10], "", "a=b", "-x"),
        *("two lines\n\tand a tab", "Größe, naïve café, 日本", "x y " * 500, "two\u2003blanks"),
    ],
)
def test_plain_words_are_not_suspected(text: str) -> None:
    assert is_plain(text)
