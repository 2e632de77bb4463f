"""Rate limits, retries and circuit breakers come from `toolkit/resilience.py` alone."""

import ast
import re
from pathlib import Path

from tests.architecture.sources import SOURCE, classes_of, each_module, nodes_of

RESILIENCE = SOURCE / "toolkit" / "resilience.py"
NAMES = re.compile(
    r"Backoff|RetrySchedule|Circuit|RateLimiter$|RateCounter|TokenBucket|LeakyBucket|Limiter$|Throttle$"
)
# These give a limit its words and its errors. They count with the limiter of the toolkit.
FACES = {"CallLimiter", "LoginThrottle"}


@each_module
def test_no_module_has_a_limiter_schedule_or_breaker_of_its_own(path: Path) -> None:
    if path == RESILIENCE:
        return
    found = {each.name for each in classes_of(path) if NAMES.search(each.name)}
    assert found - FACES == set()
    assert not found or "RateLimiter(" in path.read_text(encoding="utf-8")


@each_module
def test_no_module_doubles_a_delay_itself(path: Path) -> None:
    """`pause * 2` beside `min`, or a power of two: that is a retry schedule."""
    if path == RESILIENCE:
        return
    powers = [
        node.lineno
        for node in nodes_of(path)
        if isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.Pow)
        and isinstance(node.left, ast.Constant)
        and node.left.value == 2
        and not isinstance(node.right, ast.Constant)
    ]
    assert powers == []
    text = path.read_text(encoding="utf-8")
    assert re.search(r"(pause|wait|delay|backoff)\w* ?(\* ?2\b|\*= ?2\b)", text) is None


@each_module
def test_only_the_schedule_draws_a_jitter(path: Path) -> None:
    # The rule of retried calls is pure: its two users pass the chance.
    allowed = {
        SOURCE / "toolkit" / "background.py",
        SOURCE / "gateway" / "retries.py",
        SOURCE / "sdk" / "agent.py",
    }
    if path not in allowed:
        imports = [node for node in nodes_of(path) if isinstance(node, ast.Import)]
        assert "random" not in {name.name for node in imports for name in node.names}


@each_module
def test_what_opens_once_for_all_who_wait_is_the_shared_opening(path: Path) -> None:
    """A table of tasks by key, beside the one of the toolkit."""
    if path != SOURCE / "toolkit" / "background.py":
        text = path.read_text(encoding="utf-8")
        assert re.search(r"_opening\w*: dict\[\w+, asyncio\.(Task|Future)", text) is None
