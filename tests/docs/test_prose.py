"""The prose check finds what it is meant to find, and nothing in code."""

import pytest

from tests.docs.prose import (
    MAX_WORDS,
    ProseRules,
    Sentence,
    sentences_of_markdown,
    sentences_of_python,
)

RULES = ProseRules(["party", "set aside"])


def kinds(text: str) -> list[str]:
    return [found.kind for found in RULES.findings(Sentence("page.md", 1, text))]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Comity checks each call.", []),
        (f"Comity {'very ' * MAX_WORDS}slowly.", ["long"]),
        ("Whoever comes is checked.", ["subject"]),
        ("What it does is secret.", ["subject"]),
        ("What does it do?", []),
        ("Each party is known.", ["retired"]),
        ("A third-party server is set aside.", ["retired"]),
    ],
)
def test_findings_of_a_sentence(text: str, expected: list[str]) -> None:
    assert kinds(text) == expected


def test_markdown_is_split_into_sentences_without_code() -> None:
    page = """# Title

Comity runs `the party`. It stops,
then ends.

```sh
comity party
```

| key | means |
|---|---|
| `a` | One thing. Another thing. |

- First item
- [Second](party.md) item
"""
    found = [(each.line, each.text) for each in sentences_of_markdown("page.md", page)]
    assert found == [
        (1, "Title"),
        (3, "Comity runs X."),
        (3, "It stops, then ends."),
        (10, "key"),
        (10, "means"),
        (12, "X"),
        (12, "One thing."),
        (12, "Another thing."),
        (14, "First item"),
        (15, "Second item"),
    ]


def test_docstrings_and_messages_of_a_module_are_read() -> None:
    source = '''"""A module of the gateway."""
def f(name):
    raise ValueError(f"the server {name} does not answer")
PATTERN = r"^a b c d$"
'''
    assert [each.text for each in sentences_of_python("a.py", source)] == [
        "A module of the gateway.",
        "the server X does not answer",
    ]
