"""When keys were last used: written now and then, and never lost to a store that is away."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import pytest

from comity.errors import Unavailable
from comity.identity import keys
from comity.identity.keys import KeyUsage

THEN = datetime(2026, 11, 15, tzinfo=UTC)
LATER = THEN + timedelta(seconds=5)


async def test_the_last_use_of_each_key_is_written_once() -> None:
    used, written = KeyUsage(), list[Mapping[str, datetime]]()

    async def write(noted: Mapping[str, datetime]) -> None:
        written.append(noted)

    used.record_use("a", THEN)
    used.record_use("a", LATER)
    used.record_use("b", THEN)
    await used.flush(write)
    await used.flush(write)
    assert written == [{"a": LATER, "b": THEN}]


async def test_what_a_store_does_not_take_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    used = KeyUsage()

    async def fail(noted: Mapping[str, datetime]) -> None:
        used.record_use("a", LATER)
        raise Unavailable("the store is away")

    used.record_use("a", THEN)
    used.record_use("b", THEN)
    await used.flush(fail)
    assert len(used) == 2
    monkeypatch.setattr(keys, "MOST", 2)
    await used.flush(fail)
    assert len(used) == 1
