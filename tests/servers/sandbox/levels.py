"""The levels of confinement that tests try, where the machine can make them."""

import functools
from collections.abc import Generator
from contextlib import contextmanager

import pytest

from comity.servers.sandbox.levels import bubblewrap_problem, landlock_problem
from comity.servers.sandbox.model import (
    SandboxAccess,
    SandboxLevel,
    SandboxLimits,
    SandboxPolicy,
)
from comity.servers.sandbox.reach import open_folders

BOTH_LEVELS = (SandboxLevel.BUBBLEWRAP, SandboxLevel.LANDLOCK)


@functools.cache
def _problem(level: SandboxLevel) -> str | None:
    return bubblewrap_problem() if level is SandboxLevel.BUBBLEWRAP else landlock_problem()


def skip_without(level: SandboxLevel) -> None:
    """Skip a test where the machine cannot make the level."""
    problem = _problem(level)
    if problem is not None:
        pytest.skip(problem)


@contextmanager
def opened_policy(
    level: SandboxLevel, access: SandboxAccess, limits: SandboxLimits
) -> Generator[SandboxPolicy]:
    """Open the folders of a server, as the gateway does before each start."""
    folders = open_folders(access, ())
    try:
        yield SandboxPolicy(level, access, limits, folders.by_place)
    finally:
        folders.close()
