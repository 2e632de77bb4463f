"""The files that Comity is deployed by, and whether a command line in them is a real one."""

import tomllib
from pathlib import Path
from typing import Any

import click

from comity.cli.main import comity

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"


def understood(words: list[str]) -> str:
    """Which command of Comity's these words run; raises where it would refuse them."""
    with click.Context(comity, info_name="comity") as context:
        name, command, rest = comity.resolve_command(context, words)
        assert command is not None
        command.make_context(name, rest, context).close()
        return str(name)


def pinned(lock: Path) -> dict[str, str]:
    lines = [line for line in lock.read_text(encoding="utf-8").splitlines() if line[:1].isalnum()]
    return {line.partition("==")[0]: line.partition("==")[2].split()[0] for line in lines}


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
