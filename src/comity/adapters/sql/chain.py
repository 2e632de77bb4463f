"""A chain as a database keeps it: who writes it, and what is asked of it when it is taken up.

Writing has a connection of its own in every product, and goes by its driver: this is on the way
of each call, and whatever is between us and the driver costs more than the driver does.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, Protocol

from comity.ports.journaling import Head
from comity.rules.chain import GENESIS, OUTCOMES
from comity.wire.audit import Type
from comity.wire.errors import Misconfigured
from comity.wire.journal import Line

TABLE: Final = "comity_journal"
COLUMNS: Final = Line._fields
PATIENT_SECONDS: Final = 120.0
"""For what is asked once at the beginning, and may have to look at all of the last run."""

LOOKED_BACK: Final = 200_000
"""How many entries of a chain beside ours are looked at: what its end left open is near it."""

_BESIDE: Final = 1_000

HEADS: Final = (
    f"SELECT seq, hash FROM {TABLE} WHERE node = $1 ORDER BY seq DESC LIMIT 1",  # noqa: S608 - our name
    "SELECT last, hash FROM comity_segments WHERE node = $1 ORDER BY last DESC LIMIT 1",
)
"""The last entry, and the last that is gone: everything of a chain may be."""

DOUBTFUL: Final = f"""
SELECT body FROM {TABLE} AS intent
WHERE node = $1 AND type = '{Type.CALL_INTENDED}' AND seq > $2 AND seq > coalesce((
  SELECT seq FROM {TABLE} WHERE node = $1 AND type = '{Type.JOURNAL_OPENED}'
  ORDER BY seq DESC LIMIT 1
), 0) AND NOT EXISTS (
  SELECT 1 FROM {TABLE} AS outcome WHERE outcome.call = intent.call AND outcome.call <> ''
  AND outcome.type IN ({", ".join(f"'{each}'" for each in OUTCOMES)})
) ORDER BY seq
"""  # noqa: S608  # nothing in it is a stranger's


class Chain(Protocol):
    """One node's chain, which nobody else adds to as long as this one holds it."""

    async def open(self, node: str) -> Head: ...
    async def append(self, lines: Sequence[Line]) -> None: ...
    async def close(self) -> None: ...


def beside(node: str) -> Iterator[str]:
    """The names under which a node may find a chain: its own, and those beside it."""
    yield node
    yield from (f"{node}~{each}" for each in range(2, _BESIDE))


def is_beside(chain: str, node: str) -> bool:
    return chain == node or chain.startswith(f"{node}~")


def furthest(heads: Iterable[Any]) -> tuple[int, bytes]:
    """How far a chain has come, of what was found of it."""
    found = ((int(head[0]), bytes(head[1])) for head in heads if head is not None)
    return max(found, default=(0, GENESIS))


def went_on() -> Misconfigured:
    return Misconfigured("the journal went on without us; its chain has to be opened again")
