"""Comity as it is where several share it: credentials required, and one party with what it needs.

The clients of the tests show no key; a proxy beside the gateway shows theirs.
"""

import asyncio
import json
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from secrets import token_hex
from typing import Any, cast
from urllib.parse import urlsplit

from comity.adapters.sql.sqlite import SCHEME, open_records
from comity.kernel.minting import mint
from comity.wire.grants import Effect, Grant
from comity.wire.parties import Key, Party
from tests.interop.introducing import introducing
from tests.interop.processes import comity

PARTY = "agent:interop"

type Entry = dict[str, Any]


@contextmanager
def governed(servers: Mapping[str, Entry], folder: Path) -> Generator[str]:
    """Comity in front of `servers`, as an origin at which everybody is the same known party."""
    store, pepper = f"{SCHEME}{folder / 'governed.db'}", token_hex(32)
    key = asyncio.run(_settle(store, pepper, servers))
    config = folder / "governed.toml"
    config.write_text(_settings(store, servers))
    with (
        comity(config, {"COMITY_PEPPER": pepper}) as origin,
        introducing(urlsplit(origin).port or 0, key) as port,
    ):
        yield f"http://127.0.0.1:{port}"


async def _settle(store: str, pepper: str, servers: Iterable[str]) -> str:
    """One party, its key, and a grant of everything that each server offers."""
    now = datetime.now(UTC)
    shown, key = mint(pepper.encode(), Key("", PARTY, b"", created_at=now))
    records = open_records(store)
    await records.open()
    try:
        await records.parties.put(Party(PARTY))
        await records.keys.put(key, now)
        await records.grants.put(
            *(Grant(PARTY, "*", f"{each}/*", Effect.ALLOW) for each in servers)
        )
    finally:
        await records.close()
    return shown


def _settings(store: str, servers: Mapping[str, Entry]) -> str:
    lines = ["[identity]", 'mode = "required"', "[store]", f"url = {_toml(store)}"]
    for name, entry in servers.items():
        # What nobody has judged counts as dangerous, and would wait for a person.
        known = {"id": name, **entry, "policy": {"risk": "moderate"}}
        known["transport"] = known.pop("type", "stdio")
        lines += ["[[servers]]", *(f"{key} = {_toml(value)}" for key, value in known.items())]
    return "\n".join([*lines, ""])


def _toml(value: object) -> str:
    if isinstance(value, dict):
        entries = cast("dict[str, object]", value).items()
        return "{" + ", ".join(f"{json.dumps(name)} = {_toml(one)}" for name, one in entries) + "}"
    return json.dumps(value)
