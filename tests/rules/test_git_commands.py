"""What of git only looks."""

import pytest

from comity.rules.git_commands import git_problem


@pytest.mark.parametrize(
    "line", ["status", "log -p -3", "--no-pager show HEAD", "branch -a", "--version"]
)
def test_what_only_looks_has_no_problem(line: str) -> None:
    assert git_problem(line.split()) is None


@pytest.mark.parametrize(
    "line", ["", "-c a=b log", "push", "branch new", "log --output=x", "tag v1", "log ext::sh"]
)
def test_what_may_do_more_has_one(line: str) -> None:
    assert git_problem(line.split()) is not None
