"""A bench reads the CPU of the process it means, and leaves nothing running."""

import os
import subprocess
import sys
import time

import psutil
import pytest

from bench.processes import DidNotStart, Running, cpu_seconds_of

LISTENS = "import sys; print('x: listening on http://127.0.0.1:4242', file=sys.stderr, flush=True)"
HAS_A_CHILD_THAT_STAYS = f"""
import signal, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); "
    "time.sleep(60)"], stdout=subprocess.PIPE)
child.stdout.readline()
{LISTENS}
time.sleep(60)
"""


def test_the_whole_group_is_ended() -> None:
    before = set(psutil.Process().children(recursive=True))
    with Running([sys.executable, "-c", HAS_A_CHILD_THAT_STAYS]) as running:
        assert running.port() == 4242
        everyone = [
            each for each in psutil.Process().children(recursive=True) if each not in before
        ]
        assert len(everyone) >= 2
    _, alive = psutil.wait_procs(everyone, timeout=10)
    assert alive == []


def test_what_never_listens_says_why() -> None:
    with (
        Running([sys.executable, "-c", "raise SystemExit('the door is stuck')"]) as running,
        pytest.raises(DidNotStart, match="the door is stuck"),
    ):
        running.port()


def test_cpu_is_that_of_the_process_and_not_of_its_children() -> None:
    before = cpu_seconds_of(os.getpid())
    began = time.process_time()
    busy = "n = 0\nfor i in range(3_000_000): n += i\nprint(__import__('time').process_time())"
    child = subprocess.run(
        [sys.executable, "-c", busy], check=True, capture_output=True, timeout=50
    )
    ours = cpu_seconds_of(os.getpid()) - before
    assert ours == pytest.approx(time.process_time() - began, abs=0.02)
    assert ours < float(child.stdout)
