"""The levels of confinement that tests try, where the machine can make them."""

import functools

import pytest

from comity.servers.sandbox.levels import bubblewrap_problem, landlock_problem
from comity.servers.sandbox.model import SandboxLevel

BOTH_LEVELS = (SandboxLevel.BUBBLEWRAP, SandboxLevel.LANDLOCK)


@functools.cache
def _problem(level: SandboxLevel) -> str | None:
    return bubblewrap_problem() if level is SandboxLevel.BUBBLEWRAP else landlock_problem()


def skip_without(level: SandboxLevel) -> None:
    """Skip a test where the machine cannot make the level."""
    problem = _problem(level)
    if problem is not None:
        pytest.skip(problem)
