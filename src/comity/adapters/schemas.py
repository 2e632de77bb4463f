"""Which of a stranger's JSON Schemas cannot be used, found out without holding the event loop.

The compiler runs in a process of its own, which is started when first needed and ended when idle.
The conversation with it is plain blocking code on one thread; the loop only waits. A schema that
kills the compiler is known by being the first without an answer. (Decision 0006, attack 17)
"""

import asyncio
import contextlib
import hashlib
import os
import signal
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Final, cast

import msgspec

from comity.adapters.schema_compiler import ARGUMENTS, MOST_BYTES, READY, RESULTS
from comity.wire.errors import Unavailable

ROUND: Final = 64
IDLE_SECONDS: Final = 60.0
REMEMBERED: Final = 131_072
MOST_DEATHS: Final = 4
TOO_SLOW: Final = "it takes too long to compile"
TOO_MUCH: Final = "it cannot be compiled within the limits of memory"
NOT_TRIED: Final = "it was not examined, because others of its server took too long"
_COMMAND: Final = (sys.executable, "-P", "-m", "comity.adapters.schema_compiler")
# What an interpreter may need to find its libraries; no secret of the operator's.
_INHERITED: Final = ("PYTHON", "LD_LIBRARY_PATH")
_TIMERS: Final = (-signal.SIGPROF, -signal.SIGALRM)


class Schemas:
    """The one judge of schemas in this process. It answers each schema from memory if it can."""

    def __init__(self) -> None:
        # One thread, so that the compiler and the memory have one user at a time, in order.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="schemas")
        self._compiler = _Compiler()
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
            for digest, reason in zip(digests, answers, strict=False):
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


class _Compiler:
    """The process that compiles, or none."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False

    def ask(self, lines: Sequence[bytes]) -> Iterator[str | None]:
        """An answer for each line, up to and with the first that killed the compiler.

        All are written before any answer is read: 64 answers fit into a pipe, so neither side can
        wait for the other for ever.
        """
        process = self._process or self._start()
        requests, answers = _pipes(process)
        with contextlib.suppress(OSError):  # it has died: the answers tell of which line
            requests.write(b"".join(lines))
            requests.flush()
        for _ in lines:
            answer = answers.readline()
            if not answer:
                yield self._autopsy(process)
                return
            yield msgspec.json.decode(answer, type=str | None)

    def _start(self) -> subprocess.Popen[bytes]:
        if self._closed:
            raise Unavailable("the gateway is closing")
        process = subprocess.Popen(
            _COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={name: value for name, value in os.environ.items() if name.startswith(_INHERITED)},
            start_new_session=True,
        )
        self._process = process
        if _pipes(process)[1].readline() != READY:
            self.end()
            raise Unavailable("the schema compiler does not start; is the installation whole?")
        return process

    def _autopsy(self, process: subprocess.Popen[bytes]) -> str:
        self.end()
        if self._closed:
            raise Unavailable("the gateway is closing")
        return TOO_SLOW if process.returncode in _TIMERS else TOO_MUCH

    def end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            # At the end of its input it ends by itself; a kill would hide what it died of.
            for pipe in _pipes(process):
                with contextlib.suppress(OSError):
                    pipe.close()
            process.wait()

    def close(self) -> None:
        self._closed = True
        if self._process is not None:
            self._process.kill()


def _pipes(process: subprocess.Popen[bytes]) -> tuple[IO[bytes], IO[bytes]]:
    return cast("IO[bytes]", process.stdin), cast("IO[bytes]", process.stdout)
