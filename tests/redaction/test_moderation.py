"""What a topic is told of a server's answer: all of it but the secrets."""

from hypothesis import given
from hypothesis import strategies as st

from comity.redaction.redact import Redactor, TopicRedactor

REDACTOR = Redactor(["hunter2hunter2"], b"key")


def moderated(value: object, *, minds_names: bool = True) -> tuple[object, bool]:
    moderation = TopicRedactor(REDACTOR.hide, REDACTOR.mark, minds_names=minds_names)
    return moderation.redact(value), moderation.was_needed


def test_what_holds_no_secret_stays_as_it_is_whatever_its_length() -> None:
    value = {"content": [{"type": "text", "text": "a line\n" * 10_000}], "n": 1.5, "no": None}
    assert moderated(value) == (value, False)


def test_a_secret_that_is_known_or_looks_like_one_is_hidden_wherever_it_stands() -> None:
    value = {
        "content": [{"type": "text", "text": "the password is hunter2hunter2"}],
        "deep": [[{"url": "https://ana:s3cr3tpw@db.example.org/x"}]],
        "ghp_0123456789abcdefghij": "as a name",
    }
    said, was_needed = moderated(value)
    assert was_needed
    for secret in ("hunter2", "s3cr3tpw", "ghp_0123456789"):
        assert secret not in str(said)
    assert "db.example.org" in str(said)


def test_what_stands_under_a_secret_name_is_hidden_except_in_a_description() -> None:
    value = {"login": {"user": "ana", "password": "plain", "pin": 1234, "token_count": 5}}
    said, was_needed = moderated(value)
    assert was_needed
    assert "plain" not in str(said)
    assert "1234" not in str(said)
    assert "'user': 'ana'" in str(said)
    assert "'token_count': 5" in str(said)
    schema = {"properties": {"password": {"type": "string", "description": "yours"}}}
    assert moderated(schema, minds_names=False) == (schema, False)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=20,
)


@given(JSON)
def test_a_known_secret_never_comes_through(value: object) -> None:
    said, _ = moderated({"before": "hunter2hunter2", "value": value, "after": ["hunter2hunter2"]})
    assert "hunter2hunter2" not in str(said)
