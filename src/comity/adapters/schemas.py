"""Which of a stranger's JSON Schemas cannot be used, found out without holding the event loop.

The compiler runs in a process of its own, which is started when first needed and ended when idle.
The conversation with it is plain blocking code on one thread; the loop only waits. A schema that
kills the compiler is known by being the first without an answer. (Decision 0006, attack 17)
"""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import msgspec

from comity.adapters.schema_compiler import ARGUMENTS, MOST_BYTES, RESULTS
from comity.adapters.side_process import Death, SideProcess, command_of

ROUND: Final = 64
IDLE_SECONDS: Final = 60.0
REMEMBERED: Final = 131_072
MOST_DEATHS: Final = 4
TOO_SLOW: Final = "it takes too long to compile"
TOO_MUCH: Final = "it cannot be compiled within the limits of memory"
NOT_TRIED: Final = "it was not examined, because others of its server took too long"
_COMMAND: Final = command_of("comity.adapters.schema_compiler")


class Schemas:
    """The one judge of schemas in this process. It answers each schema from memory if it can."""

    def __init__(self) -> None:
        # One thread, so that the compiler and the memory have one user at a time, in order.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="schemas")
        self._compiler = SideProcess(lambda: _COMMAND, "schema compiler")
        self._verdicts: OrderedDict[bytes, str | None] = OrderedDict()
        self._rest: asyncio.TimerHandle | None = None

    async def faults(self, schemas: Mapping[str, object]) -> dict[str, str]:
        """Why each unusable schema is so, by the name it was given under.

        A name that begins with `inputSchema` is of a tool's arguments, which must be an object.
        """
        loop = asyncio.get_running_loop()
        found: dict[str, str] = {}
        items = list(schemas.items())
        deaths = 0
        # By rounds, so that a server with many tools does not keep the others waiting.
        for start in range(0, len(items), ROUND):
            part = items[start : start + ROUND]
            if deaths >= MOST_DEATHS:
                found |= dict.fromkeys((name for name, _ in part), NOT_TRIED)
                continue
            reasons, died = await loop.run_in_executor(self._thread, self._judge, part, deaths)
            deaths += died
            found |= reasons
        self._rest_later(loop)
        return found

    async def close(self) -> None:
        """End the compiler, whatever it is doing."""
        if self._rest is not None:
            self._rest.cancel()
        self._compiler.close()
        await asyncio.get_running_loop().run_in_executor(self._thread, self._compiler.end)
        self._thread.shutdown(wait=False)

    def _rest_later(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._rest is not None:
            self._rest.cancel()
        self._rest = loop.call_later(IDLE_SECONDS, self._thread.submit, self._compiler.end)

    def _judge(
        self, items: Sequence[tuple[str, object]], deaths: int
    ) -> tuple[dict[str, str], int]:
        """The faults among them, and how often the compiler died of one."""
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
        died = self._learn(unknown, MOST_DEATHS - deaths)
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


def _reason(answer: bytes | Death) -> str | None:
    if isinstance(answer, Death):
        return TOO_SLOW if answer is Death.TOO_SLOW else TOO_MUCH
    return msgspec.json.decode(answer, type=str | None)
