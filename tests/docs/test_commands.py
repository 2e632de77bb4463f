"""Every `comity` command in the docs exists, with the options that the docs give it."""

import re
import shlex

import click
import pytest

from comity.cli.main import comity
from tests.docs.pages import ROOT, pages, snippets_of

FENCE = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`(comity [^`]+)`")
SIGNED = "comity checkpoint"
"""How the signed text of the audit log begins. It is no command."""
PROMPTS = {"console": "$ ", "text": "$ ", "sh": ""}
"""How a line with a command begins, by the language of its snippet."""

# Decision records and old changes name the commands of their time. The reference is generated.
SKIPPED = ("docs/design/", "CHANGELOG.md", "docs/reference/commands.md")


def commands_in(text: str, prompt: str = "") -> list[list[str]]:
    """The words of each command. A pipe, a redirection or a comment ends one."""
    found: list[list[str]] = []
    lines = [line[len(prompt) :] for line in text.splitlines() if line.startswith(prompt)]
    for part in re.split(r"\n|\||&&|;|\$\(", "\n".join(lines)):
        words = part.strip().partition(" #")[0].partition(" > ")[0]
        if "(" not in words:
            # The end of a command in $( ).
            words = words.partition(")")[0]
        if words.startswith("comity ") and not words.startswith(SIGNED):
            found.append(_split(words.rstrip(" &")))
    return found


def _split(words: str) -> list[str]:
    try:
        return shlex.split(words)
    except ValueError:
        # The rest of a quoted argument was cut off with the pipe in it.
        return words.split()


def problem(words: list[str]) -> str | None:
    """Why a command cannot be run as written: an unknown command, or an unknown option."""
    command: click.Command = comity
    context = click.Context(command)
    rest = words[1:]
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        following = command.get_command(context, rest[0])
        if following is None:
            return f"no command {rest[0]!r} in `{' '.join(words)}`"
        command, rest = following, rest[1:]
        context = click.Context(command, parent=context)
    if isinstance(command, click.Group):
        # A group without a command lists.
        command = command.get_command(context, "list") or command
    known = {name for each in command.get_params(context) for name in each.opts}
    given = {each.partition("=")[0] for each in rest if re.match(r"--?[a-z]", each)}
    missing = sorted(given - known)
    return f"no option {missing[0]} in `{' '.join(words)}`" if missing else None


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("comity nonsense", True),
        ("comity topics capabilities nonsense", True),
        ("comity topics list --nonsense", True),
        ("comity topics --url http://x", False),
        ("comity topics join ops --as ana | head", False),
    ],
)
def test_a_wrong_command_is_noticed(text: str, wrong: bool) -> None:
    (words,) = commands_in(text)
    assert (problem(words) is not None) == wrong


def test_every_command_in_the_docs_exists() -> None:
    problems: list[str] = []
    for page in pages():
        name = page.relative_to(ROOT).as_posix()
        if name.startswith(SKIPPED):
            continue
        shown = INLINE.findall(FENCE.sub("", page.read_text(encoding="utf-8")))
        found = [words for text in shown for words in commands_in(text)]
        for each in snippets_of(page):
            if each.language in PROMPTS:
                found += commands_in(each.text, PROMPTS[each.language])
        wrong = map(problem, found)
        problems += [f"{name}: {each}" for each in wrong if each]
    assert problems == []
