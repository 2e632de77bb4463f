"""Whole gateways under faults that follow from a seed; the module `invariants` says what holds."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Generator
from typing import Any

import pytest

from tests.pace import at_length

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

SEEDS = range(at_length(200, 8))

type Play = Callable[[str], dict[str, Any]]


@pytest.fixture(scope="module")
def play() -> Generator[Play]:
    """A process with virtual time, which plays each seed in a fork of its own."""
    command = [sys.executable, "-m", "tests.simulation", "--serve"]
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    with subprocess.Popen(
        command, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        requests, results = process.stdin, process.stdout

        def play_one(request: str) -> dict[str, Any]:
            print(request, file=requests, flush=True)
            return json.loads(results.readline())

        yield play_one


@pytest.mark.parametrize("seed", SEEDS)
def test_no_invariant_is_broken(play: Play, seed: int) -> None:
    result = play(str(seed))
    assert result["violations"] == [], "\n".join(result["faults"])
    assert result["answered"] > 0


def test_a_seed_replays_exactly() -> None:
    """The second run is in a process of its own, so that its addresses in memory differ."""
    command = [sys.executable, "-m", "tests.simulation", "--seed", "1"]
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    lines = [
        subprocess.check_output(command, env=environment, text=True, timeout=300) for _ in range(2)
    ]
    first, second = (line.partition(" virtual s")[0] for line in lines)
    assert first == second


@pytest.mark.parametrize("mutant", ["approval used twice", "audit entry told before it is durable"])
def test_a_deliberate_bug_is_found(play: Play, mutant: str) -> None:
    assert play(f"0 {mutant}")["violations"]
