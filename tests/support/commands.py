"""The stdio server of these tests as a configuration names it, and what it was sent so far."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from comity.app.settings import ServerSettings
from tests.support.visitor import Visitor

ROOT = Path(__file__).parents[2]
ARGS = ("-m", "tests.support.stdio_server")


def by_command(name: str = "up", env: Mapping[str, str] | None = None) -> ServerSettings:
    """The stdio server beside this file, started as any other would be."""
    return ServerSettings(
        name,
        name,
        "stdio",
        command=sys.executable,
        sandbox="none",
        args=ARGS,
        env=dict(env or {}),
        cwd=str(ROOT),
    )


async def heard_by(visitor: Visitor) -> list[dict[str, Any]]:
    """Every message that the process behind the modern door was sent."""
    answer = await (await visitor.call_modern("heard", named="asking")).json()
    return json.loads(answer["result"]["content"][0]["text"])
