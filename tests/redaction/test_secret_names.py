"""`redaction/secrets.py`: names whose values nobody is to read, by whole words."""

from comity.redaction.secrets import is_secret_name
from tests.support.cases import loop_over


@loop_over(
    "name",
    [
        *("password", "PASSWORD", "userPassword", "db_passwd", "pass-phrase-of-passphrase"),
        *("secret", "client_secret", "clientSecret", "SECRET_KEY", "aws-secret-access-key"),
        *("token", "accessToken", "refresh_token", "X-Auth-Token", "GITHUB_TOKEN"),
        *("authorization", "Authorization", "Proxy-Authorization", "auth"),
        *("api_key", "apiKey", "APIKey", "X-API-Key", "apikey", "OPENAI_API_KEY"),
        *("private_key", "privateKey", "PRIVATE-KEY", "privatekey"),
        *("cookie", "Set-Cookie", "session", "sessionId", "credential", "credentials"),
        *("".join(chr(ord(letter) + 0xFEE0) for letter in "password"), "--password", "a.b.token"),
        "x" * 300 + "_password",
    ],
)
def test_these_names_are_of_secrets(name: str) -> None:
    assert is_secret_name(name)


@loop_over(
    "name",
    [
        *("path", "name", "key", "tokenize", "secretary", "author", "authority", "keyboard"),
        *("token_count", "max_tokens", "maxTokens", "tokenType", "session_ttl", "password_policy"),
        *("public_key", "primary_key", "sort_key", "compass", "bypass", "", "123", "pinned"),
    ],
)
def test_these_are_not(name: str) -> None:
    assert not is_secret_name(name)
