"""What the memory server remembers: a SQLite file with a full-text index."""

import re
import sqlite3
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

_TABLES: Final = """
CREATE TABLE IF NOT EXISTS memories (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    text TEXT NOT NULL UNIQUE COLLATE NOCASE,
    conversation TEXT NOT NULL,
    learned TEXT NOT NULL,
    is_summary INTEGER NOT NULL DEFAULT 0,
    is_folded INTEGER NOT NULL DEFAULT 0,
    due TEXT,
    was_told INTEGER NOT NULL DEFAULT 0
);
CREATE VIRTUAL TABLE IF NOT EXISTS words USING fts5(text, tokenize = 'porter unicode61');
CREATE TRIGGER IF NOT EXISTS learned AFTER INSERT ON memories BEGIN
    INSERT INTO words (rowid, text) VALUES (new.number, new.text);
END;
CREATE TRIGGER IF NOT EXISTS forgotten AFTER DELETE ON memories BEGIN
    DELETE FROM words WHERE rowid = old.number;
END;
"""
LONGEST: Final = 500
"""Characters of one memory; what is longer is no fact but a document."""

MOST_AT_ONCE: Final = 20
_BETWEEN: Final = re.compile(r"(?<=[.!?])\s+|\n+")
_WORD: Final = re.compile(r"\w+")
# What would look like somebody else's words where a model reads it.
_MARKUP: Final = re.compile(r"[<>]|\[/?INST\]")
_REMIND: Final = re.compile(
    r"remind me (?:in (?P<many>\d{1,4}) (?P<unit>second|minute|hour|day)s?"
    r"|on (?P<day>\d{4}-\d\d-\d\d)(?: at (?P<time>\d\d:\d\d))?)"
    r" (?:to |about |that )?(?P<what>.+)",
    re.IGNORECASE,
)
# Words that say nothing of what a sentence is about.
_EMPTY: Final = frozenset(
    _WORD.findall("""
    a about after again all also am an and any are as at be because been before but by can could did
    do does for from had has have he her him his how i if in is it its just me my no not of on or
    our please she should so some tell than that the their them then there they this to us was we
    were what when where which who why will with would you your
    """)
)


@dataclass(frozen=True, slots=True)
class Memory:
    id: str
    text: str


@dataclass(frozen=True, slots=True)
class Reminder:
    """Something to be said unasked, once it is due."""

    id: str
    text: str
    due: datetime


class Memories:
    def __init__(self, path: str | Path) -> None:
        self._file = sqlite3.connect(path, isolation_level=None)
        self._file.executescript(_TABLES)

    def close(self) -> None:
        self._file.close()

    def learn(self, said: str, conversation: str, now: datetime) -> list[Memory]:
        """Keep what somebody states; questions, and what is known already, are left out."""
        kept: list[Memory] = []
        for sentence in statements_in(said):
            reminder = _REMIND.search(sentence)
            due = None if reminder is None else _due(reminder, now)
            text = sentence if reminder is None else reminder["what"].rstrip(".!")
            memory = self._keep(text, conversation, now, due)
            if memory is not None:
                kept.append(memory)
        return kept

    def about(self, question: str, conversation: str | None = None, most: int = 5) -> list[Memory]:
        """What has to do with this, the nearest first; in one conversation or in all."""
        words = telling_words(question)[:50]
        if not words:
            return []
        # Each word in quotes: nobody's question is read as FTS5's own language.
        wanted = " OR ".join(f'"{word}"' for word in words)
        found = self._file.execute(
            "SELECT id, memories.text FROM words JOIN memories ON number = words.rowid"
            " WHERE words MATCH :wanted AND NOT is_folded"
            " AND (:conversation IS NULL OR conversation = :conversation)"
            " ORDER BY rank LIMIT :most",
            {"wanted": wanted, "conversation": conversation, "most": most},
        )
        return [Memory(*row) for row in found]

    def forget(self, id: str) -> bool:
        return self._file.execute("DELETE FROM memories WHERE id = ?", (id,)).rowcount > 0

    def due(self, now: datetime) -> list[Reminder]:
        """Reminders that nobody was told yet."""
        found = self._file.execute(
            "SELECT id, text, due FROM memories WHERE due <= ? AND NOT was_told ORDER BY due",
            (now.isoformat(),),
        )
        return [Reminder(id, text, datetime.fromisoformat(due)) for id, text, due in found]

    def told(self, id: str) -> None:
        self._file.execute("UPDATE memories SET was_told = 1 WHERE id = ?", (id,))

    def unfolded(self, conversation: str) -> list[Memory]:
        """What was learned in a conversation and is in no summary yet."""
        found = self._file.execute(
            "SELECT id, text FROM memories WHERE conversation = ? AND NOT is_summary"
            " AND NOT is_folded AND (due IS NULL OR was_told) ORDER BY number",
            (conversation,),
        )
        return [Memory(*row) for row in found]

    def fold(self, summary: str, of: Sequence[Memory], conversation: str, now: datetime) -> None:
        """Let one text stand for many; they are kept, and no longer found."""
        self._file.execute("BEGIN")
        try:
            self._keep(summary, conversation, now, None, is_summary=True)
            marks = [(memory.id,) for memory in of]
            self._file.executemany("UPDATE memories SET is_folded = 1 WHERE id = ?", marks)
        except sqlite3.Error:
            self._file.execute("ROLLBACK")
            raise
        self._file.execute("COMMIT")

    def _keep(
        self,
        text: str,
        conversation: str,
        now: datetime,
        due: datetime | None,
        is_summary: bool = False,
    ) -> Memory | None:
        id = f"mem_{uuid.uuid4().hex[:12]}"
        kept = self._file.execute(
            "INSERT OR IGNORE INTO memories (id, text, conversation, learned, is_summary, due)"
            " VALUES (?, ?, ?, ?, ?, ?)",
            (
                id,
                text[:LONGEST],
                conversation,
                now.isoformat(),
                is_summary,
                None if due is None else due.isoformat(),
            ),
        )
        return Memory(id, text[:LONGEST]) if kept.rowcount else None


def statements_in(said: str) -> list[str]:
    """The sentences that state something."""
    sentences = [each.strip() for each in _BETWEEN.split(said)]
    return [each for each in sentences if _is_statement(each)][:MOST_AT_ONCE]


def _is_statement(sentence: str) -> bool:
    if sentence.endswith("?") or len(sentence) > LONGEST or _MARKUP.search(sentence):
        return False
    return len(telling_words(sentence)) > 1


def telling_words(text: str) -> list[str]:
    words = dict.fromkeys(word.lower() for word in _WORD.findall(text))
    return [word for word in words if word not in _EMPTY]


def _due(found: re.Match[str], now: datetime) -> datetime | None:
    if found["many"]:
        return now + timedelta(**{f"{found['unit'].lower()}s": int(found["many"])})
    try:
        due = datetime.fromisoformat(f"{found['day']}T{found['time'] or '09:00'}")
    except ValueError:
        return None
    return due.replace(tzinfo=UTC)
