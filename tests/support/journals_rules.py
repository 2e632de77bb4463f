"""Journals to be proved, whole and tampered with: what a forger can do to lines of an export."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from comity.audit import export as exported
from comity.audit.chain import (
    GENESIS,
    AuditRecord,
    ChainCheckpoint,
    ChainSegment,
    entry_hash,
    line_of,
    signed_part,
)
from comity.audit.events import AuditEvent, AuditResult, AuditType, body_of

BEGAN = datetime(2026, 11, 15, 8, tzinfo=UTC)
KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
PUBLIC = KEY.public_key().public_bytes_raw().hex()
OTHER = Ed25519PrivateKey.from_private_bytes(bytes(range(1, 33)))


def event(number: int, said: str = "") -> AuditEvent:
    return AuditEvent(
        AuditType.TOOL_EXECUTED,
        f"agent:a{number % 7}",
        BEGAN + timedelta(seconds=number),
        server="files",
        tool=f"tool_{number % 11}",
        result=AuditResult.SUCCESS if number % 5 else AuditResult.FAILURE,
        trace=f"{number:032x}",
        call=f"c-{number:x}",
        details={"duration_ms": number % 97, "said": said or f"entry {number} ü"},
    )


def chained(
    bodies: Sequence[tuple[AuditEvent, bytes]], node: str, before: bytes, seq: int
) -> list[AuditRecord]:
    """Those lines that honestly follow from one hash."""
    lines: list[AuditRecord] = []
    for number, (told, body) in enumerate(bodies, seq):
        before = entry_hash(before, node.encode(), number, body)
        lines.append(line_of(told, node, number, body, before))
    return lines


def signed(line: AuditRecord, key: Ed25519PrivateKey = KEY) -> ChainCheckpoint:
    public = key.public_key().public_bytes_raw().hex()
    bare = ChainCheckpoint(line.node, line.seq, line.hash, line.at, public)
    return bare._replace(signature=key.sign(signed_part(bare)))


@dataclass
class Journal:
    """One node's chain, with a checkpoint after every so many entries and after the last."""

    lines: list[AuditRecord]
    checkpoints: list[ChainCheckpoint]
    segments: tuple[ChainSegment, ...] = ()

    @classmethod
    def of(cls, size: int, every: int = 10, node: str = "node-1") -> "Journal":
        events = [event(number) for number in range(1, size + 1)]
        lines = chained([(each, body_of(each)) for each in events], node, GENESIS, 1)
        at = [*range(every, size + 1, every)]
        if size % every:
            at.append(size)
        return cls(lines, [signed(lines[seq - 1]) for seq in at])

    def rows(self) -> Iterator[bytes]:
        """The lines of the export between its header and its end."""
        waiting = list(self.checkpoints)
        for line in self.lines:
            yield exported.encode_entry(line)
            while waiting and waiting[0].seq <= line.seq:
                yield exported.checkpoint_line(waiting.pop(0))
        yield from map(exported.checkpoint_line, waiting)


def export(*journals: Journal, end: int | None = None) -> list[bytes]:
    rows = [row for journal in journals for row in journal.rows()]
    size = sum(len(journal.lines) for journal in journals)
    nodes = [journal.lines[0].node for journal in journals if journal.lines]
    return [
        exported.encode_header(BEGAN, nodes),
        *rows,
        exported.end_line(size if end is None else end),
    ]


@dataclass(frozen=True)
class Forged:
    """What a forger did: the lines, which entry is the first that is wrong, and what was done."""

    deed: str
    journal: Journal
    first: int
    last: int
    kinds: tuple[str, ...]


def _altered(line: AuditRecord, chance: random.Random) -> AuditRecord:
    """Another body: some letter of it, or something that it says."""
    said: dict[str, Any] = msgspec.json.decode(line.body)
    match chance.randrange(3):
        case 0:
            said["details"]["said"] += "!"
        case 1:
            said["result"] = "BLOCKED"
        case _:
            said["actor"]["id"] = "agent:nobody"
    return line._replace(body=msgspec.json.encode(said))


def _rehashed(lines: list[AuditRecord], place: int) -> None:
    """Hash all anew from there on, as who can write to the database can."""
    for at in range(place, len(lines)):
        before = lines[at - 1].hash if at else GENESIS
        line = lines[at]
        lines[at] = line._replace(
            seq=at + 1, hash=entry_hash(before, line.node.encode(), at + 1, line.body)
        )


def _renumbered(lines: list[AuditRecord], place: int) -> None:
    for at in range(place, len(lines)):
        lines[at] = lines[at]._replace(seq=at + 1)


def _made_up(lines: list[AuditRecord], place: int, chance: random.Random) -> AuditRecord:
    told = event(chance.randrange(10**6), "never happened")
    before = lines[place - 1].hash if place else GENESIS
    body, node = body_of(told), lines[0].node
    hashed = entry_hash(before, node.encode(), place + 1, body)
    if chance.random() < 0.5:
        hashed = chance.randbytes(32)
    return line_of(told, node, place + 1, body, hashed)


type Deed = Callable[[Journal, random.Random], Forged]


def alter(journal: Journal, chance: random.Random) -> Forged:
    lines = list(journal.lines)
    place = chance.randrange(len(lines))
    seq = place + 1
    match chance.randrange(5):
        case 0:
            lines[place] = _altered(lines[place], chance)
            kinds, last = ("altered",), seq
        case 1:
            lines[place] = _altered(lines[place], chance)
            before = lines[place - 1].hash if place else GENESIS
            own = entry_hash(before, lines[place].node.encode(), seq, lines[place].body)
            lines[place] = lines[place]._replace(hash=own)
            # Nothing tells it from an alteration of the next, unless its columns do; and of the
            # last one nothing but what was signed.
            kinds, last = ("altered", "columns"), seq + 1
            if seq == len(lines):
                return Forged("alter", Journal(lines, journal.checkpoints), 0, seq, kinds)
        case 2:
            lines[place] = _altered(lines[place], chance)
            _rehashed(lines, place)
            return Forged("alter", Journal(lines, journal.checkpoints), 0, seq, ("altered",))
        case 3:
            lines[place] = lines[place]._replace(hash=chance.randbytes(32))
            kinds, last = ("altered",), seq
        case _:
            lines[place] = lines[place]._replace(**{chance.choice(COLUMNS): "other"})
            kinds, last = ("columns",), seq
    return Forged("alter", Journal(lines, journal.checkpoints), seq, last, kinds)


COLUMNS = ("trace", "call", "type", "actor", "server", "tool", "result")


def delete(journal: Journal, chance: random.Random) -> Forged:
    lines = list(journal.lines)
    count = chance.choice((1, 1, 2, 5))
    place = chance.randrange(len(lines) - count - 1)
    del lines[place : place + count]
    kinds: tuple[str, ...] = ("removed",)
    if chance.random() < 0.5:
        _renumbered(lines, place)
        kinds = ("removed", "altered")
    return Forged("delete", Journal(lines, journal.checkpoints), place + 1, place + 1, kinds)


def insert(journal: Journal, chance: random.Random) -> Forged:
    lines = list(journal.lines)
    place = chance.randrange(len(lines))
    lines.insert(place, _made_up(lines, place, chance))
    if chance.random() < 0.5:
        _renumbered(lines, place)
    return Forged(
        "insert", Journal(lines, journal.checkpoints), place + 1, place + 2, ("inserted",)
    )


def swap(journal: Journal, chance: random.Random) -> Forged:
    lines = list(journal.lines)
    one, other = sorted(chance.sample(range(len(lines)), 2))
    if chance.random() < 0.5:
        other = min(one + 1, len(lines) - 1)
        one = other - 1
    lines[one], lines[other] = lines[other], lines[one]
    kinds: tuple[str, ...] = ("reordered",)
    if chance.random() < 0.5:
        _renumbered(lines, one)
        kinds = ("reordered", "altered", "inserted", "removed")
    return Forged("swap", Journal(lines, journal.checkpoints), one + 1, one + 1, kinds)


def cut(journal: Journal, chance: random.Random) -> Forged:
    place = chance.randrange(1, len(journal.lines))
    kept = [each for each in journal.checkpoints if each.seq <= place]
    forged = Journal(journal.lines[:place], kept)
    return Forged("cut", forged, place + 1, place + 1, ("cut",))


def rewrite(journal: Journal, chance: random.Random) -> Forged:
    """Alter an entry, hash all behind it anew, and remove every signature that says otherwise.

    Who can write to the store needs no key for that.
    """
    lines = list(journal.lines)
    # Late enough that some signatures go, and early enough that the rest was due to be signed.
    place = chance.randrange(len(lines) - 60)
    lines[place] = lines[place]._replace(body=body_of(event(place + 1, "never happened")))
    _rehashed(lines, place)
    kept = [each for each in journal.checkpoints if each.seq <= place]
    first = kept[-1].seq + 1 if kept else 1
    return Forged("rewrite", Journal(lines, kept), first, first, ("unsigned",))


DEEDS: tuple[Deed, ...] = (alter, delete, insert, swap, cut)
