"""Gateways that create their first administrator, and calls with its key."""

import json
import re
import urllib.error
import urllib.request
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.interop.processes import Program, answers, running

KEY = re.compile(r"cmty_live_[0-9A-Za-z]{11}_[0-9A-Za-z]{49}")


@dataclass(frozen=True)
class PrintingGateway:
    """A running gateway and the file that holds its standard output."""

    origin: str
    program: Program
    output: Path

    @property
    def keys(self) -> list[str]:
        return KEY.findall(self.output.read_text(encoding="utf-8"))


@contextmanager
def printing_gateway(
    command: list[str], output: Path, env: Mapping[str, str] | None = None
) -> Generator[PrintingGateway]:
    """Run a command that serves, and yield it when it is ready."""
    into = ["sh", "-c", f'exec "$@" > "{output}"', "sh"]
    with running([*into, *command], env) as program:
        told = program.wait_for_line(r"listening on http://([^:]+|\[.*\]):(\d+)")
        origin = f"http://127.0.0.1:{told.group(2)}"
        program.wait_until(lambda: answers(f"{origin}/ready"))
        yield PrintingGateway(origin, program, output)


def call_tool(origin: str, name: str, key: str, **arguments: Any) -> tuple[int, str]:
    """Call a tool as an HTTP client does. Return the status and the text of the answer."""
    asked = urllib.request.Request(  # noqa: S310 - loopback only
        f"{origin}/tools/{name}",
        json.dumps(arguments).encode(),
        {"Authorization": f"Bearer {key}", "Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(asked, timeout=60) as answer:  # noqa: S310 - loopback only
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.read().decode()
