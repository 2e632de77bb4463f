"""Attack 17 of `docs/design/security.md` §1.5: schemas, patterns and arguments made to do harm.

None may hold the event loop: what the loop's own thread spends on one check is counted in processor
time, so that a busy machine fails nobody.
"""

import inspect
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from comity.validation.arguments import ArgumentError
from comity.validation.compiled_schemas import CachedSchemaChecker
from comity.validation.schema_validator import ArgumentSchemas
from comity.validation.worker import ValidationWorker
from tests.pace import here
from tests.security import bombs
from tests.security.corpus import is_few, section

STALL_SECONDS = 0.1
TRIES = 4
"""A core that is shared with others counts more for the same work; the least is what it takes."""
MISFITS = section("schemas.json", "misfits")
UNUSABLE = section("schemas.json", "unusable")
BOMBS = section("schemas.json", "bombs")
HARMLESS = section("schemas.json", "harmless")


@dataclass
class Checked:
    """What was found, and what the event loop's thread spent on finding it."""

    problem: ArgumentError | None
    seconds: float


@asynccontextmanager
async def checking() -> AsyncGenerator[ArgumentSchemas]:
    examiner = ValidationWorker()
    try:
        yield ArgumentSchemas(examiner)
    finally:
        await examiner.close()


async def checked(schemas: ArgumentSchemas, schema: object, arguments: object) -> Checked:
    definition = msgspec.json.encode({"name": "tool", "inputSchema": schema})
    worst, found = 0.0, None
    for _ in range(2):  # the first time it is compiled, and then used again
        before = time.thread_time()
        problem = schemas.check(definition, arguments)
        worst = max(worst, time.thread_time() - before)
        found = await problem if inspect.isawaitable(problem) else problem
        worst = max(worst, time.thread_time() - before)
    return Checked(found, worst)


async def test_attack_17_arguments_that_do_not_fit_are_refused() -> None:
    async with checking() as schemas:
        for name, case in MISFITS.items():
            found = await checked(schemas, case["schema"], case["arguments"])
            assert found.problem is not None, name
            assert found.problem.reason, name
            assert found.seconds < here(STALL_SECONDS), name


async def test_attack_17_a_schema_that_reaches_out_or_is_none_is_refused() -> None:
    judge = CachedSchemaChecker()
    try:
        asked = {f"inputSchema {name}": case["schema"] for name, case in UNUSABLE.items()}
        faults = await judge.faults(asked)
        assert sorted(faults) == sorted(asked)
    finally:
        await judge.close()


async def test_attack_17_a_reference_out_of_a_schema_is_not_followed_by_a_check() -> None:
    async with checking() as schemas:
        for name, case in UNUSABLE.items():
            if isinstance(case["schema"], dict) and name.startswith(
                ("reference", "meta", "pattern")
            ):
                assert (await checked(schemas, case["schema"], {})).problem is not None, name


@pytest.mark.parametrize("name", BOMBS)
async def test_attack_17_nothing_holds_the_event_loop(name: str) -> None:
    case: dict[str, Any] = dict(BOMBS[name])
    case.pop("name")
    schema, arguments = getattr(bombs, case.pop("make"))(**case)
    stalls: list[float] = []
    for _ in range(TRIES):
        async with checking() as schemas:
            before = time.thread_time()
            definition = msgspec.json.encode({"name": "tool", "inputSchema": schema})
            spent = time.thread_time() - before
            assert definition
            found = await checked(schemas, schema, arguments)
        # What the test itself spends on encoding the case is not the gateway's.
        stalls.append(found.seconds - spent)
        if stalls[-1] < here(STALL_SECONDS):
            break
    assert min(stalls) < here(STALL_SECONDS)


async def test_attack_17_harmless_arguments_pass() -> None:
    alarms: list[str] = []
    async with checking() as schemas:
        for name, case in HARMLESS.items():
            found = await checked(schemas, case["schema"], case["arguments"])
            alarms += [name] if found.problem is not None else []
    assert is_few(alarms, HARMLESS), alarms
