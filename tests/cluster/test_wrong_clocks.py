"""Gateways of one store whose machines disagree about the time: each goes by its own clock."""

import contextlib
import json
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Generator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.cli.program import EXAMPLE, Desk
from tests.interop.processes import answers, running

COMPILER = shutil.which("cc")
pytestmark = [
    pytest.mark.skipif(
        COMPILER is None or sys.platform != "linux",
        reason="a wrong clock needs a C compiler and the loader of Linux",
    ),
    pytest.mark.timeout(600),
]

# Only what tells the time of day is wrong: durations are measured with other clocks.
CLOCK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

static long shift(void) {
    const char *text = getenv("TEST_CLOCK_SHIFT");
    return text ? atol(text) : 0;
}
int clock_gettime(clockid_t id, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *)) dlsym(RTLD_NEXT, "clock_gettime");
    int done = real(id, now);
    if (!done && id == CLOCK_REALTIME) now->tv_sec += shift();
    return done;
}
time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}
int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}
"""
SHIFTS = {"right": timedelta(0), "fast": timedelta(hours=2), "slow": timedelta(hours=-2)}
SETTINGS = """
[identity]
mode = "required"
[store]
url = "sqlite:///shared.db"
[policy]
require_approval = "never"
[[servers]]
id = "example"
"""


@contextlib.contextmanager
def gateways(desk: Desk, library: Path) -> Generator[dict[str, str]]:
    """The addresses of gateways whose clocks are right, fast and slow."""
    serve = [sys.executable, "-m", "comity.cli", "serve", "-c", "comity.toml", "--port", "0"]
    with contextlib.ExitStack() as stack:
        origins: dict[str, str] = {}
        for name, shift in SHIFTS.items():
            clock = [f"LD_PRELOAD={library}", f"TEST_CLOCK_SHIFT={int(shift.total_seconds())}"]
            words = ["/bin/sh", "-c", 'cd "$0" && exec env "$@"', str(desk.folder), *clock, *serve]
            state = {"COMITY_STATE_DIR": str(desk.home / name)}
            program = stack.enter_context(running(words, {**desk.env, **state}))
            origin = program.wait_for_line(r"listening on (http://\S+)").group(1)
            program.wait_until(lambda origin=origin: answers(f"{origin}/ready?strict"))
            origins[name] = origin
        yield origins


def test_each_gateway_ends_keys_and_grants_by_its_own_clock(tmp_path: Path) -> None:
    assert COMPILER is not None
    source, library = tmp_path / "clock.c", tmp_path / "clock.so"
    source.write_text(CLOCK)
    subprocess.run(
        [COMPILER, "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True
    )
    desk = Desk(tmp_path)
    server = f'command = "{EXAMPLE["command"]}"\nargs = {json.dumps(EXAMPLE["args"])}\n'
    desk.write("comity.toml", SETTINGS + server)
    keys = {
        "agent:hour": create(desk, "agent:hour", key=("--expires", "1h")),
        "agent:granted": create(desk, "agent:granted", grant=("--expires", "1h")),
        "agent:past": create(desk, "agent:past", key=("--expires", "1s")),
    }
    ended = datetime.now(UTC) + timedelta(seconds=1)
    with gateways(desk, library) as origins:
        assert datetime.now(UTC) > ended
        seen = {
            (name, principal): is_allowed(origin, key)
            for name, origin in origins.items()
            for principal, key in keys.items()
        }
    assert seen == {
        ("right", "agent:hour"): True,
        ("right", "agent:granted"): True,
        ("right", "agent:past"): False,
        # A clock that is fast ends everything early.
        ("fast", "agent:hour"): False,
        ("fast", "agent:granted"): False,
        ("fast", "agent:past"): False,
        # One that is slow ends it late, and by no more than it is slow.
        ("slow", "agent:hour"): True,
        ("slow", "agent:granted"): True,
        ("slow", "agent:past"): True,
    }


def create(
    desk: Desk, principal: str, key: tuple[str, ...] = (), grant: tuple[str, ...] = ()
) -> str:
    file = desk.folder / f"{principal.partition(':')[2]}.key"
    done = desk.run("keys", "create", principal, "--offline", "--out", str(file), *key)
    assert done.status == 0, done.err
    done = desk.run("grants", "create", principal, "example", "--offline", *grant)
    assert done.status == 0, done.err
    return file.read_text().strip()


def is_allowed(origin: str, key: str) -> bool:
    """Whether a call of a tool runs; otherwise the key or the call is refused, and nothing else."""
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    url, body = f"{origin}/tools/example__echo", b'{"message": "on time"}'
    request = urllib.request.Request(url, body, headers)  # noqa: S310  # on loopback
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:  # noqa: S310
            answer = json.loads(reply.read())
    except urllib.error.HTTPError as refused:
        with refused:
            status, said = refused.code, refused.read()
        if status in (401, 403, 404):
            return False
        raise AssertionError(said) from None
    assert answer["content"][0]["text"] == "on time", answer
    return True
