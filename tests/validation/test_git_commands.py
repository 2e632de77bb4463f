"""What of git only looks."""

from comity.validation.shell import git_problem
from tests.support.cases import loop_over


@loop_over("line", ["status", "log -p -3", "--no-pager show HEAD", "branch -a", "--version"])
def test_what_only_looks_has_no_problem(line: str) -> None:
    assert git_problem(line.split()) is None


@loop_over(
    "line", ["", "-c a=b log", "push", "branch new", "log --output=x", "tag v1", "log ext::sh"]
)
def test_what_may_do_more_has_one(line: str) -> None:
    assert git_problem(line.split()) is not None
