"""Checks the prose that users and contributors read: docs, help texts, docstrings and messages.

A sentence has at most 25 words and a subject with a name, and no retired word of the glossary. The
script `scripts/prose` runs this. `--sample N` prints sentences drawn by a seed.
"""

import argparse
import ast
import random
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
GLOSSARY: Final = ROOT / "docs" / "reference" / "glossary.toml"
LIMITS: Final = ROOT / "tests" / "docs" / "prose.toml"
MAX_WORDS: Final = 25
MIN_MESSAGE_WORDS: Final = 4

# A decision record is history, and the ledger quotes the documents that Comity implements.
_NOT_READ: Final = ("docs/design/", "docs/reference/glossary.md")
_FRONT: Final = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "AGENTS.md", "CHANGELOG.md")

_FENCE: Final = re.compile(r"^ *(```|~~~).*?^ *\1 *$", re.MULTILINE | re.DOTALL)
_COMMENT: Final = re.compile(r"<!--.*?-->|<[^>\n]+>", re.DOTALL)
_CODE: Final = re.compile(r"``[^`]+``|`[^`\n]+`")
_LINK: Final = re.compile(r"!?\[([^\]]*)\](\([^)]*\)|\[[^\]]*\])")
_EMPHASIS: Final = re.compile(r"\*\*|__|(?<!\w)[*_](?=\w)|(?<=\w)[*_](?!\w)")
_BLOCK: Final = re.compile(r"\n\s*\n|\n(?=\s*([-*+]|\d+\.) )|\n(?=\|)|\n(?=#)|\n(?=!!!|===)")
_ITEM: Final = re.compile(r"^\s*([-*+]|\d+\.|#+|>|!!!|===)\s*")
_END: Final = re.compile(r"(?<=[.!?])[\"')\]]*\s+(?=[\"'(\[]*[A-Z0-9`])")
_ABBREVIATION: Final = re.compile(r"\b(e\.g|i\.e|etc|vs|approx|No)\.$")
_WORD: Final = re.compile(r"[A-Za-z][A-Za-z'-]*")
_NO_SUBJECT: Final = re.compile(
    r"(?i)^(whoever|whatever|whichever|nobody|somebody|everybody|anybody|one that|that which"
    r"|those who|he who|who|what)\b"
)
_NOT_PROSE: Final = re.compile(r"[\\^$]|\bSELECT\b|\bINSERT\b|://\S+\s*$|\{\{|\{\n|\n\s*\}")
# Click prints a paragraph that begins so as it is: examples, and tables of commands.
_VERBATIM: Final = "\b"
_MESSAGE_SIGN: Final = re.compile(r"\w[.,;:!?)](\s|$)|\bX\b|%|\{")
_GRAMMAR: Final = re.compile(
    r"(?i)an?|and|are|as|at|be|by|can|did|does|failed|for|from|has|have|here|in|is|its?|may"
    r"|must|not?|of|only?|or|that|the|this|too?|was|were|with|your?"
)
MIN_SORTED_WORDS: Final = 10
MIN_GRAMMAR_SHARE: Final = 0.08


@dataclass(frozen=True, slots=True)
class Sentence:
    """One sentence, and where it stands."""

    file: str
    line: int
    text: str
    # A heading may be a clause: "What Comity does not do".
    is_heading: bool = False


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong with a sentence."""

    kind: str
    sentence: Sentence
    detail: str

    def __str__(self) -> str:
        where = f"{self.sentence.file}:{self.sentence.line}"
        return f"{where}: {self.kind}: {self.detail}: {self.sentence.text[:160]}"


def sentences_of_markdown(file: str, text: str) -> Iterator[Sentence]:
    for blank in (_FENCE, _COMMENT):
        text = blank.sub(lambda found: "\n" * found.group().count("\n"), text)
    if text.startswith("---\n"):
        head = text.index("\n---", 4) + 4
        text = "\n" * text[:head].count("\n") + text[head:]
    line = 1
    start = 0
    for found in [*_BLOCK.finditer(text), None]:
        end = found.start() if found else len(text)
        block = text[start:end]
        first = line + block[: len(block) - len(block.lstrip("\n"))].count("\n")
        for part in block.strip().split("|") if block.lstrip().startswith("|") else [block]:
            is_heading = part.lstrip().startswith("#")
            for found_in in _sentences(file, first, _ITEM.sub("", _plain(part))):
                yield replace(found_in, is_heading=is_heading)
        line += block.count("\n") + (found.group().count("\n") if found else 0)
        start = found.end() if found else end


def sentences_of_python(file: str, source: str) -> Iterator[Sentence]:
    """Docstrings, and other texts of several words: messages, help texts, descriptions."""
    tree = ast.parse(source)
    inner = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
        for part in ast.walk(node)
        if part is not node
    }
    for node in ast.walk(tree):
        text = _text_of(node)
        if text is None or id(node) in inner:
            continue
        text = _plain(text)
        if len(_WORD.findall(text)) < MIN_MESSAGE_WORDS or _NOT_PROSE.search(text):
            continue
        for block in re.split(r"\n\s*\n|\n(?=\s*[-*] )", text):
            if not block.lstrip().startswith(_VERBATIM) and not is_word_list(block):
                yield from _sentences(file, getattr(node, "lineno", 1), block)


def is_word_list(text: str) -> bool:
    """Whether a text lists names or options: words in order, or words without grammar."""
    words = text.split()
    if len(words) <= MIN_MESSAGE_WORDS or _MESSAGE_SIGN.search(text):
        return False
    grammar = sum(_GRAMMAR.fullmatch(word) is not None for word in words)
    is_sorted = len(words) >= MIN_SORTED_WORDS and words == sorted(words)
    return is_sorted or grammar < MIN_GRAMMAR_SHARE * len(words)


def _text_of(node: ast.AST) -> str | None:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(
                part.value
                if isinstance(part, ast.Constant) and isinstance(part.value, str)
                else "X"
                for part in parts
            )
        case _:
            return None


def _plain(text: str) -> str:
    text = _CODE.sub("X", _LINK.sub(r"\1", text))
    return _EMPHASIS.sub("", text)


def _sentences(file: str, line: int, block: str) -> Iterator[Sentence]:
    flat = " ".join(block.split())
    parts: list[str] = []
    for part in _END.split(flat):
        if parts and _ABBREVIATION.search(parts[-1]):
            parts[-1] += " " + part
        elif part:
            parts.append(part)
    for part in parts:
        if _WORD.search(part):
            yield Sentence(file, line, part.strip())


def retired_words() -> list[str]:
    table = tomllib.loads(GLOSSARY.read_text(encoding="utf-8"))
    return sorted({word for term in table["terms"] for word in term["retired"]})


class ProseRules:
    """The rules that every sentence is held against."""

    def __init__(self, retired: Iterable[str]) -> None:
        words = "|".join(re.escape(word) for word in sorted(retired, key=len, reverse=True))
        self._retired = re.compile(rf"(?i)(?<![\w./_-])({words})(?![\w_-]|\.\w)")

    def findings(self, sentence: Sentence) -> Iterator[Finding]:
        words = sentence.text.split()
        if len(words) > MAX_WORDS:
            yield Finding("long", sentence, f"{len(words)} words")
        is_statement = not sentence.is_heading and not sentence.text.endswith("?")
        if is_statement and (found := _NO_SUBJECT.match(sentence.text)):
            yield Finding("subject", sentence, found.group())
        for found in self._retired.finditer(sentence.text):
            yield Finding("retired", sentence, found.group().lower())


def read_all() -> Iterator[Sentence]:
    """Every sentence of the docs, the front of the repository and the source."""
    pages = [*(ROOT / name for name in _FRONT), *sorted((ROOT / "docs").rglob("*.md"))]
    pages += sorted((ROOT / "examples").rglob("*.md"))
    for page in pages:
        name = page.relative_to(ROOT).as_posix()
        if page.exists() and not name.startswith(_NOT_READ):
            yield from sentences_of_markdown(name, page.read_text(encoding="utf-8"))
    for module in sorted((ROOT / "src").rglob("*.py")):
        name = module.relative_to(ROOT).as_posix()
        if "/templates/" not in name:
            yield from sentences_of_python(name, module.read_text(encoding="utf-8"))


def _check(findings: list[Finding]) -> int:
    """Fail where there are more findings of a kind than its limit. The limits only fall."""
    limits: dict[str, int] = tomllib.loads(LIMITS.read_text(encoding="utf-8"))
    found = Counter(each.kind for each in findings)
    worse = [kind for kind, limit in limits.items() if found[kind] > limit]
    for kind in worse:
        print(*(each for each in findings if each.kind == kind), sep="\n")
    for kind, limit in limits.items():
        print(f"prose: {kind}: {found[kind]}, limit {limit}")
    return 1 if worse else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="*", help="only files whose path begins so")
    parser.add_argument("--count", action="store_true", help="print the number by kind and file")
    parser.add_argument("--check", action="store_true", help="compare with the limits")
    parser.add_argument("--sample", type=int, metavar="N", help="print N sentences instead")
    parser.add_argument("--seed", type=int, default=16)
    chosen = parser.parse_args()
    rules = ProseRules(retired_words())
    sentences = [
        each for each in read_all() if not chosen.paths or each.file.startswith(tuple(chosen.paths))
    ]
    if chosen.sample:
        # Headings and cells of tables are no sentences.
        whole = [each for each in sentences if each.text.endswith(".") and each.text.count(" ") > 4]
        # The seed makes the sample the same for every reader.
        drawn = random.Random(chosen.seed).sample(whole, chosen.sample)  # noqa: S311  # no secret
        for each in drawn:
            print(f"{each.file}:{each.line}: {each.text}")
        return 0
    findings = [found for each in sentences for found in rules.findings(each)]
    if chosen.check:
        return _check(findings)
    if chosen.count:
        for (kind, file), number in Counter(
            (found.kind, found.sentence.file) for found in findings
        ).most_common():
            print(f"{number:5} {kind:8} {file}")
    else:
        print(*findings, sep="\n")
    print(f"prose: {len(sentences)} sentences, {len(findings)} findings", file=sys.stderr)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
