"""Writes docs/reference/glossary.md from docs/reference/glossary.toml; run it after a change.

.venv/bin/python -m tests.docs.glossary
"""

import tomllib

import msgspec

from tests.docs.pages import ROOT

TABLE = ROOT / "docs" / "reference" / "glossary.toml"
PAGE = ROOT / "docs" / "reference" / "glossary.md"
HEAD = """# Glossary

The words of Comity. The settings, the API, the commands and these pages use them in the same sense.

| term | definition |
|---|---|
"""


class Term(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One word, its definition in one sentence, and the words that it replaces."""

    term: str
    definition: str
    retired: tuple[str, ...]


def terms() -> list[Term]:
    table = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    return msgspec.convert(table["terms"], list[Term])


def page() -> str:
    """Return the page that belongs to the table."""
    return HEAD + "".join(f"| {each.term} | {each.definition} |\n" for each in terms())


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
