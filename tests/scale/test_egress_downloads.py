"""200 downloads at once through the egress proxy, beside the same downloads without it.

Rounds with the proxy and without it take turns, so that a busy machine is slow for both. In CI only
the bytes are compared, and no time.
"""

import statistics
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager

import pytest

from tests.interop.peers import ROOT
from tests.pace import at_length
from tests.support.figures import Tell

pytestmark = [pytest.mark.integration, pytest.mark.timeout(at_length(900, 240))]

MODULE = "tests.scale.egress_downloads"
DOWNLOADS = 200
ROUNDS, SIZE = at_length((9, 4_000_000), (1, 300_000))
LEAST_RATIO = 0.5


@contextmanager
def process_with_port(*arguments: str) -> Generator[int]:
    """Run a part until the end of the test. Yields the port that it prints."""
    command = [sys.executable, "-m", MODULE, *arguments]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.kill()


def test_downloads_through_the_proxy_have_half_of_the_direct_throughput(tell: Tell) -> None:
    with process_with_port("web") as web, process_with_port("proxy", str(web)) as proxy:
        numbers = [str(each) for each in (web, proxy, ROUNDS, DOWNLOADS, SIZE)]
        done = subprocess.run(
            [sys.executable, "-m", MODULE, "client", *numbers],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=at_length(800, 200),
            check=False,
        )
    # The client has compared every byte.
    assert done.returncode == 0, done.stderr
    rounds = [tuple(map(float, line.split())) for line in done.stdout.splitlines()]
    assert len(rounds) == ROUNDS
    ratio = statistics.median(proxied / direct for direct, proxied in rounds)
    direct = statistics.median(each[0] for each in rounds)
    tell(
        f"{DOWNLOADS} downloads of {SIZE / 1e6:g} MB: {direct:.0f} MB/s directly, "
        f"{ratio:.2f} of it through the proxy"
    )
    assert at_length(ratio, 1.0) >= LEAST_RATIO
