"""What the examples do by themselves: memories that are kept, secrets found, GitLab in words."""

import json
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from examples.compliance_server.redaction import redact
from examples.gitlab_webhook.gitlab import event_in, is_genuine
from examples.memory_server.memories import Memories, statements_in

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)


@pytest.fixture
def memories() -> Iterator[Memories]:
    with closing(Memories(":memory:")) as opened:
        yield opened


def test_what_was_said_is_found_again_by_what_it_is_about(tmp_path: Path) -> None:
    first = Memories(tmp_path / "memories.db")
    first.learn("We scale the greenhouse extension to 8.5 beds. How is that?", "conv_1", NOW)
    first.learn("Lunch is at noon.", "conv_2", NOW)
    first.close()
    again = Memories(tmp_path / "memories.db")
    found = [memory.text for memory in again.about("How's the greenhouse project?")]
    assert found == ["We scale the greenhouse extension to 8.5 beds."]
    assert again.about("What is it?") == []
    again.close()


def test_the_same_is_learned_once_and_questions_never(memories: Memories) -> None:
    assert len(memories.learn("The key is under the mat. Is it?", "conv_1", NOW)) == 1
    assert memories.learn("THE KEY IS UNDER THE MAT.", "conv_2", NOW) == []
    assert statements_in("Ok. Yes! x" + "y" * 600) == []


@pytest.mark.parametrize(
    "question", ['"', "a OR", "NEAR(x y)", "text:*", "'; DROP TABLE words; --"]
)
def test_a_question_is_words_and_not_the_language_of_the_index(
    question: str, memories: Memories
) -> None:
    memories.learn("Words about x and y are kept.", "conv_1", NOW)
    memories.about(question)
    assert memories.about("kept words") != []


def test_a_reminder_is_due_once_its_time_has_come(memories: Memories) -> None:
    memories.learn("Remind me in 2 hours to call the printer.", "conv_1", NOW)
    memories.learn("Remind me on 2026-11-20 at 09:30 about the fair.", "conv_1", NOW)
    memories.learn("Remind me on 2026-13-40 to do nothing sensible.", "conv_1", NOW)
    assert memories.due(NOW) == []
    (first,) = memories.due(NOW + timedelta(hours=3))
    assert first.text == "call the printer"
    memories.told(first.id)
    (second,) = memories.due(NOW + timedelta(days=30))
    assert (second.text, second.due) == ("the fair", datetime(2026, 11, 20, 9, 30, tzinfo=UTC))


def test_a_summary_stands_for_what_it_is_of(memories: Memories) -> None:
    memories.learn("The fair has a blue tent. The fair has a red tent.", "conv_1", NOW)
    unfolded = memories.unfolded("conv_1")
    assert len(unfolded) == 2
    memories.fold("The fair has two tents", unfolded, "conv_1", NOW)
    assert [each.text for each in memories.about("the fair")] == ["The fair has two tents"]
    assert memories.unfolded("conv_1") == []


def test_a_key_is_redacted_as_the_document_shows_it() -> None:
    text, found = redact("The API key is sk-1234567890abcdef...")
    assert text == "The API key is [REDACTED]..."
    assert [each.on_wire() for each in found] == [{"type": "api_key", "position": [15, 34]}]


@pytest.mark.parametrize(
    ("text", "types"),
    [
        ("Write to ana@example.org or call +49 30 1234567.", ["email", "phone"]),
        ("My card is 4111 1111 1111 1111, not 4111 1111 1111 1112.", ["card_number"]),
        ("Pay to DE89 3704 0044 0532 0130 00, not DE00 3704 0044 0532 0130 00.", ["iban"]),
        ("password: hunter22", ["password"]),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY----- x", ["private_key"]),
        ("-----BEGIN PRIVATE KEY-----\nMIIE, and it was cut off", ["private_key"]),
        ("glpat-abcdefghij0123456789 and ghp_abcdefghij0123456789", ["api_key", "api_key"]),
        ("123-45-6789", ["social_security_number"]),
        ("Order 1234 was sent on 2026-11-15 at 12:00; sk-no", []),
    ],
)
def test_secrets_and_personal_data_are_found(text: str, types: list[str]) -> None:
    redacted, found = redact(text)
    assert [each.type for each in found] == types
    assert redacted.count("[REDACTED]") == len(types)
    for each in found:
        assert text[each.start : each.end] not in redacted


def test_a_text_full_of_addresses_is_not_slow_to_read() -> None:
    _, found = redact("ana@example.org " * 20_000)
    assert len(found) == 20_000


PUSHED = {
    "object_kind": "push",
    "ref": "refs/heads/main",
    "user_name": "release-bot",
    "project": {"path_with_namespace": "harbour/tides"},
    "total_commits_count": 1,
    "commits": [{"message": "round at midnight\n\nand much more"}],
}


def test_a_push_is_told_in_words_under_the_id_that_gitlab_gives_it() -> None:
    event = event_in({"idempotency-key": "f5e5"}, json.dumps(PUSHED).encode())
    assert event is not None
    assert event.id == "f5e5"
    assert (
        event.text == "1 new commits on main by release-bot in harbour/tides:\n- round at midnight"
    )
    assert event.origin == {"server": "gitlab", "webhook": "push", "repository": "harbour/tides"}


def test_an_event_without_an_id_has_one_by_its_bytes() -> None:
    first = event_in({}, json.dumps(PUSHED).encode())
    again = event_in({}, json.dumps(PUSHED).encode())
    other = event_in({}, json.dumps({**PUSHED, "ref": "refs/heads/next"}).encode())
    assert first is not None
    assert again is not None
    assert other is not None
    assert first.id == again.id != other.id


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (
            {"object_kind": "merge_request", "user": {"name": "release-bot"}}
            | {"object_attributes": {"iid": 7, "title": "Faster", "action": "open"}},
            "Merge request !7 in harbour/tides: open by release-bot: Faster",
        ),
        (
            {"object_kind": "issue", "user": {"name": "release-bot"}}
            | {"object_attributes": {"iid": 9, "title": "Slow\nvery", "action": "close"}},
            "Issue #9 in harbour/tides: close by release-bot: Slow",
        ),
        (
            {"object_kind": "pipeline", "builds": [{"name": "lint", "status": "failed"}]}
            | {"object_attributes": {"id": 31, "ref": "main", "status": "failed"}},
            "Pipeline 31 of main in harbour/tides: failed; failed: lint",
        ),
    ],
)
def test_other_events_have_words_too(said: dict[str, object], words: str) -> None:
    body = json.dumps({**said, "project": {"path_with_namespace": "harbour/tides"}}).encode()
    event = event_in({}, body)
    assert event is not None
    assert event.text == words


def test_what_is_nothing_of_gitlabs_is_refused_and_what_nobody_wants_is_nothing() -> None:
    for body in (b"", b"[]", b"{}", b'{"object_kind": 1}', b'{"object_kind":"push","commits":[1]}'):
        with pytest.raises(ValueError, match=r"."):
            event_in({}, body)
    assert event_in({}, b'{"object_kind": "wiki_page"}') is None


def test_only_what_bears_the_token_is_gitlabs() -> None:
    assert is_genuine({"x-gitlab-token": "s3cret"}, "s3cret")
    assert not is_genuine({"x-gitlab-token": "s3creT"}, "s3cret")
    assert not is_genuine({}, "s3cret")
