"""Detection of unusable JSON Schemas of untrusted servers, off the event loop.

The compiler runs in its own process, which starts when needed and ends when idle. One thread talks
to it with blocking calls, and the event loop only waits. The first schema without an answer is the
one that killed the compiler. (Decision 0006, attack 17)
"""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import msgspec

from comity.toolkit.worker_process import SideProcess, WorkerExitCause, command_of
from comity.validation.schema_compiler import ARGUMENTS, MOST_BYTES, RESULTS

ROUND: Final = 64
IDLE_SECONDS: Final = 60.0
REMEMBERED: Final = 131_072
MAX_DEATHS: Final = 4
TOO_SLOW: Final = "it takes too long to compile"
TOO_MUCH: Final = "it cannot be compiled within the limits of memory"
NOT_TRIED: Final = "it was not examined, because others of its server took too long"
_COMMAND: Final = command_of("comity.validation.schema_compiler")


class CachedSchemaChecker:
    """Checks schemas for this process. It answers from its cache if it can."""

    def __init__(self) -> None:
        # One thread, so that the compiler and the cache have one user at a time, in order.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="schemas")
        self._compiler = SideProcess(lambda: _COMMAND, "schema compiler")
        self._verdicts: OrderedDict[bytes, str | None] = OrderedDict()
        self._idle_timer: asyncio.TimerHandle | None = None

    async def faults(self, schemas: Mapping[str, object]) -> dict[str, str]:
        """Return the reason for each unusable schema, by its given name.

        A name that begins with `inputSchema` belongs to a tool's arguments, which must be an
        object.
        """
        loop = asyncio.get_running_loop()
        found: dict[str, str] = {}
        items = list(schemas.items())
        deaths = 0
        # Works in rounds, so that a server with many tools does not delay the others.
        for start in range(0, len(items), ROUND):
            part = items[start : start + ROUND]
            if deaths >= MAX_DEATHS:
                found |= dict.fromkeys((name for name, _ in part), NOT_TRIED)
                continue
            reasons, died = await loop.run_in_executor(
                self._thread, self._check_schemas, part, deaths
            )
            deaths += died
            found |= reasons
        self._rest_later(loop)
        return found

    async def close(self) -> None:
        """Kill the compiler, even while it works."""
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        self._compiler.close()
        await asyncio.get_running_loop().run_in_executor(self._thread, self._compiler.end)
        self._thread.shutdown(wait=False)

    def _rest_later(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        self._idle_timer = loop.call_later(IDLE_SECONDS, self._thread.submit, self._compiler.end)

    def _check_schemas(
        self, items: Sequence[tuple[str, object]], deaths: int
    ) -> tuple[dict[str, str], int]:
        """Return the faults of these schemas, and how often the compiler died."""
        found: dict[str, str] = {}
        unknown: dict[bytes, bytes] = {}
        digests: dict[str, bytes] = {}
        for name, schema in items:
            line = _line(name, schema)
            if line is None:
                found[name] = "it is not JSON"
            elif len(line) > MOST_BYTES + 2:
                found[name] = f"it has over {MOST_BYTES} bytes"
            else:
                digest = hashlib.blake2b(line, digest_size=16).digest()
                digests[name] = digest
                if digest in self._verdicts:
                    self._verdicts.move_to_end(digest)
                else:
                    unknown[digest] = line
        died = self._learn(unknown, MAX_DEATHS - deaths)
        for name, digest in digests.items():
            reason = self._verdicts.get(digest, NOT_TRIED)
            if reason is not None:
                found[name] = reason
        while len(self._verdicts) > REMEMBERED:
            self._verdicts.popitem(last=False)
        return found, died

    def _learn(self, unknown: dict[bytes, bytes], most_deaths: int) -> int:
        digests, deaths = list(unknown), 0
        while digests and deaths < most_deaths:
            answers = self._compiler.ask([unknown[digest] for digest in digests])
            for digest, answer in zip(digests, answers, strict=False):
                reason = _reason(answer)
                self._verdicts[digest] = reason
                deaths += reason in (TOO_SLOW, TOO_MUCH)
            digests = [digest for digest in digests if digest not in self._verdicts]
        return deaths


def _line(name: str, schema: object) -> bytes | None:
    kind = ARGUMENTS if name.startswith("inputSchema") else RESULTS
    try:
        return kind + msgspec.json.encode(schema) + b"\n"
    except (TypeError, ValueError, RecursionError):
        return None


def _reason(answer: bytes | WorkerExitCause) -> str | None:
    if isinstance(answer, WorkerExitCause):
        return TOO_SLOW if answer is WorkerExitCause.TOO_SLOW else TOO_MUCH
    return msgspec.json.decode(answer, type=str | None)
