"""Many schemas judged off the event loop, with those among them that kill the compiler."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from comity.errors import Unavailable
from comity.toolkit import worker_process
from comity.validation import compiled_schemas as schemas_module
from comity.validation.compiled_schemas import (
    MAX_DEATHS,
    NOT_TRIED,
    TOO_MUCH,
    TOO_SLOW,
    CachedSchemaChecker,
)
from tests.validation.test_schema_compiler import BAD, FINE, doubled

pytestmark = pytest.mark.integration

GOOD = {"type": "object", "properties": {"path": {"type": "string"}}}


def bomb(number: int = 0) -> dict[str, object]:
    """Exponential to compile, in under 5 KB; no two are the same text."""
    return {**doubled(40, unevaluatedProperties=False), "title": str(number), "type": "object"}


@asynccontextmanager
async def judging() -> AsyncGenerator[CachedSchemaChecker]:
    schemas = CachedSchemaChecker()
    try:
        yield schemas
    finally:
        await schemas.close()


async def test_faults_are_told_by_name_and_the_good_are_not_mentioned() -> None:
    async with judging() as schemas:
        faults = await schemas.faults(
            {
                "inputSchema good": GOOD,
                "inputSchema text": {"type": "string"},
                "outputSchema text": {"type": "string"},
                "outputSchema bad": {"type": "int"},
                "outputSchema same": {"type": "int"},
            }
        )
        assert faults.keys() == {"inputSchema text", "outputSchema bad", "outputSchema same"}
        assert faults["outputSchema bad"] == faults["outputSchema same"]
        assert await schemas.faults({}) == {}


async def test_the_process_judges_as_the_compiler_does() -> None:
    async with judging() as schemas:
        known: dict[str, object] = {**FINE, **{name: schema for name, (schema, _) in BAD.items()}}
        assert (await schemas.faults(known)).keys() == BAD.keys()


async def test_bombs_are_found_out_while_the_loop_turns_and_the_rest_is_judged() -> None:
    async with judging() as schemas:
        judged = asyncio.ensure_future(
            schemas.faults({"a": GOOD, "b": bomb(), "c": {"type": "int"}, "d": GOOD})
        )
        turns = 0
        while not judged.done():
            await asyncio.sleep(0.001)
            turns += 1
        assert judged.result().keys() == {"b", "c"}
        assert judged.result()["b"] == TOO_SLOW
        # Half a second of the compiler's time went by, and the loop was free in it.
        assert turns > 20


async def test_a_server_full_of_bombs_is_given_up() -> None:
    async with judging() as schemas:
        faults = await schemas.faults({str(number): bomb(number) for number in range(200)})
        assert len(faults) == 200
        assert list(faults.values()).count(TOO_SLOW) == MAX_DEATHS
        assert list(faults.values()).count(NOT_TRIED) == 200 - MAX_DEATHS
        # Others are judged as before.
        assert await schemas.faults({"a": GOOD, "b": {"title": "new"}}) == {}


async def test_what_was_judged_once_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    async with judging() as schemas:
        asked = {"a": GOOD, "b": {"type": "int"}, "c": bomb()}
        first = await schemas.faults(asked)
        monkeypatch.setattr(worker_process.subprocess, "Popen", _never)
        assert await schemas.faults(asked) == first
        # And so is each kind apart: what may stand in a result may not in arguments.
        with pytest.raises(AssertionError):
            await schemas.faults({"inputSchema a": GOOD, "new": {"title": "never seen"}})


def _never(*_: object, **__: object) -> None:
    raise AssertionError("a process was started")


async def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schemas_module, "REMEMBERED", 10)
    async with judging() as schemas:
        many = {str(number): {"title": str(number)} for number in range(200)}
        assert await schemas.faults(many) == {}
        assert len(schemas._verdicts) == 10  # pyright: ignore[reportPrivateUsage]


async def test_a_compiler_that_is_killed_from_outside_is_replaced() -> None:
    async with judging() as schemas:
        assert await schemas.faults({"a": GOOD}) == {}
        process = schemas._compiler._process  # pyright: ignore[reportPrivateUsage]
        assert process is not None
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        faults = await schemas.faults({"b": {"title": "b"}, "c": {"title": "c"}})
        assert faults == {"b": TOO_MUCH}


async def test_a_compiler_that_does_not_start_is_unavailable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(schemas_module, "_COMMAND", ("/bin/false",))
    async with judging() as schemas:
        with pytest.raises(Unavailable, match="does not start"):
            await schemas.faults({"a": GOOD})


async def test_an_idle_compiler_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schemas_module, "IDLE_SECONDS", 0.01)
    async with judging() as schemas:
        assert await schemas.faults({"a": GOOD}) == {}
        process = schemas._compiler._process  # pyright: ignore[reportPrivateUsage]
        until = time.monotonic() + 20
        while process is not None and process.poll() is None and time.monotonic() < until:
            await asyncio.sleep(0.01)
        assert process is None or process.returncode == 0
        assert await schemas.faults({"b": {"title": "b"}}) == {}


async def test_closing_does_not_wait_for_a_bomb() -> None:
    schemas = CachedSchemaChecker()
    await schemas.faults({"a": GOOD})
    judged = asyncio.ensure_future(
        schemas.faults({str(number): bomb(number) for number in range(50)})
    )
    await asyncio.sleep(0)
    await schemas.close()
    with pytest.raises(Unavailable, match="closing"):
        await judged


async def test_the_compiler_has_no_secret_in_its_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CLOUD_KEY", "S3CRET")
    async with judging() as schemas:
        assert await schemas.faults({"a": GOOD}) == {}
        process = schemas._compiler._process  # pyright: ignore[reportPrivateUsage]
        assert process is not None
        with open(f"/proc/{process.pid}/environ", "rb") as environment:  # noqa: ASYNC230, PTH123
            assert b"S3CRET" not in environment.read()
