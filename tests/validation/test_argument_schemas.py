"""Arguments against the schemas of their tools, at once where that is quick."""

import inspect
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import msgspec
import pytest

from comity.validation import schema_validator
from comity.validation.arguments import ArgumentError
from comity.validation.schema_validator import ArgumentSchemas
from comity.validation.worker import ValidationWorker
from tests.support.cases import loop_over

PLAIN = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
LOOPED = {"type": "object", "properties": {"a": {"$ref": "#"}}, "maxProperties": 1}


def defined(schema: object) -> bytes:
    return msgspec.json.encode({"name": "x", "inputSchema": schema})


@asynccontextmanager
async def checking() -> AsyncGenerator[ArgumentSchemas]:
    examiner = ValidationWorker()
    try:
        yield ArgumentSchemas(examiner)
    finally:
        await examiner.close()


async def test_a_plain_schema_is_checked_at_once() -> None:
    async with checking() as schemas:
        assert schemas.check(defined(PLAIN), {"a": 1}) is None
        assert schemas.check(defined(PLAIN), {}) == ArgumentError(
            "a", '"a" is a required property', ('Add the argument "a".',)
        )


async def test_a_heavy_schema_is_checked_elsewhere() -> None:
    async with checking() as schemas:
        cases: list[tuple[object, bool]] = [
            ({"a": {"a": {}}}, True),
            ({"a": {"b": 1, "c": 2}}, False),
        ]
        for arguments, fits in cases:
            found = schemas.check(defined(LOOPED), arguments)
            assert inspect.isawaitable(found)
            assert (await found is None) == fits


async def test_large_arguments_are_checked_elsewhere() -> None:
    pattern = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(a|b)+$"}}}
    async with checking() as schemas:
        first = schemas.check(defined(pattern), {"a": "a"})
        assert inspect.isawaitable(first)
        assert await first is None
        assert schemas.check(defined(pattern), {"a": "ab"}) is None
        large = schemas.check(defined(pattern), {"a": "ab" * 500_000})
        assert inspect.isawaitable(large)
        assert await large is None
        wide = schemas.check(defined(pattern), {"b": [0] * 200_000})
        assert inspect.isawaitable(wide)
        assert await wide is None


@loop_over("definition", [b"{}", b'{"name":"x"}', b'{"inputSchema":{}}'])
async def test_a_tool_without_a_schema_takes_anything(definition: bytes) -> None:
    async with checking() as schemas:
        assert schemas.check(definition, {"a": 1}) is None


@loop_over(
    "schema", [5, [], {"type": "strnig"}, {"type": "object", "$ref": "http://127.0.0.1:9/x"}]
)
async def test_what_cannot_be_used_lets_nothing_through(schema: object) -> None:
    async with checking() as schemas:
        for _ in range(2):
            found = schemas.check(defined(schema), {})
            problem = await found if inspect.isawaitable(found) else found
            assert problem == ArgumentError("", "the tool's own schema cannot be used")


async def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_validator, "REMEMBERED", 3)
    async with checking() as schemas:
        for number in range(10):
            schemas.check(defined({**PLAIN, "title": str(number)}), {"a": 1})
        assert len(schemas._prepared) == 3  # pyright: ignore[reportPrivateUsage]
