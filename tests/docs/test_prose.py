"""The prose check finds what it is meant to find, and nothing in code."""

import pytest

from tests.docs.prose import (
    MAX_WORDS,
    ProseRules,
    Sentence,
    is_word_list,
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


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("-name -iname -path -ipath -regex ! -not ( )", True),
        ("mail email inbox smtp gmail message", True),
        ("a an and are as at be by can do does", True),
        ("you read messages too slowly", False),
        ("the server does not answer", False),
        ("Changing server X failed", False),
        ("Servers, clients, topics, channels and models", False),
    ],
)
def test_word_lists_are_told_from_messages(text: str, expected: bool) -> None:
    assert is_word_list(text) == expected


def test_examples_and_configuration_are_no_sentences() -> None:
    source = '''def f():
    """Lists the channels of a server.

    \\b
    Examples:
      comity channels open mail inbox
    """
CONFIGURATION = "listen: here\\njetstream {{ store_dir: there, max_file_store: 1 }}"
STYLE = "body {\\n  margin: 0; color: red;\\n}"
'''
    assert [each.text for each in sentences_of_python("a.py", source)] == [
        "Lists the channels of a server."
    ]
