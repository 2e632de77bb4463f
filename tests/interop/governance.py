"""Comity as it is where several share it: credentials required, and one party with what it needs.

The clients of the tests show no key; a proxy beside the gateway shows theirs.
"""

import asyncio
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from typing import Any
from urllib.parse import urlsplit

from comity.config.toml_writer import toml_value
from comity.policy.grants import Effect, Grant
from comity.storage.sqlite import SCHEME
from tests.interop.introducing import introducing
from tests.interop.processes import comity
from tests.support.principals import add_principals

PARTY = "agent:interop"

type Entry = dict[str, Any]


@contextmanager
def governed(servers: Mapping[str, Entry], folder: Path) -> Generator[str]:
    """Comity in front of `servers`, as an origin at which everybody is the same known party."""
    store, pepper = f"{SCHEME}{folder / 'governed.db'}", token_hex(32)
    grants = (Grant(PARTY, "*", f"{each}/*", Effect.ALLOW) for each in servers)
    keys = asyncio.run(add_principals(store, pepper, [PARTY], *grants))
    config = folder / "governed.toml"
    config.write_text(_settings(store, servers))
    with (
        comity(config, {"COMITY_PEPPER": pepper}) as origin,
        introducing(urlsplit(origin).port or 0, keys[PARTY]) as port,
    ):
        yield f"http://127.0.0.1:{port}"


def _settings(store: str, servers: Mapping[str, Entry]) -> str:
    lines = ["[identity]", 'mode = "required"', "[store]", f"url = {toml_value(store)}"]
    for name, entry in servers.items():
        # What nobody has judged counts as dangerous, and would wait for a person.
        known = {"id": name, **entry, "policy": {"risk": "moderate"}}
        known["transport"] = known.pop("type", "stdio")
        lines += ["[[servers]]", *(f"{key} = {toml_value(value)}" for key, value in known.items())]
    return "\n".join([*lines, ""])
