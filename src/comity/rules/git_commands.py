"""What of git only looks: subcommands and options that neither write, fetch nor run a program.

What a repository's own configuration makes git do (a file monitor, a diff driver) cannot be seen in
a command line; against a hostile repository only the sandbox helps.
"""

from collections.abc import Sequence
from typing import Final

from comity.rules.options import Options, named, words

_LIMITS: Final = (
    "all author before after branches committer date decorate first-parent follow format graph "
    "grep max-count merges no-decorate no-merges oneline abbrev abbrev-commit no-color color "
    "pretty reverse since until skip tags topo-order date-order left-right cherry-pick remotes"
)
_DIFFS: Final = (
    "cached staged stat shortstat numstat name-only name-status patch no-patch unified word-diff "
    "summary dirstat ignore-all-space ignore-space-change ignore-blank-lines diff-filter "
    "find-renames no-renames exit-code quiet check raw minimal patience histogram no-ext-diff "
    "no-textconv relative merge-base text full-index"
)


_SUBCOMMANDS: Final[dict[str, Options]] = {
    "status": Options(
        "sbvu", "", words("short branch porcelain long untracked-files ignored show-stash")
    ),
    "log": Options("pisEFgq", "nSGUL", words(_LIMITS, _DIFFS), numbers=True),
    "show": Options("psq", "U", words(_LIMITS, _DIFFS), numbers=True),
    "diff": Options("pswbRaqM", "USG", words(_DIFFS, "color no-color no-index")),
    "blame": Options("lsetfnpwbMC", "L", words("line-porcelain porcelain show-email date root")),
    "shortlog": Options("nsec", "", words("numbered summary email since until no-merges")),
    "rev-parse": Options(
        "q", "", words("abbrev-ref short show-toplevel is-inside-work-tree verify git-dir symbolic")
    ),
    "rev-list": Options("", "n", words(_LIMITS, "count objects"), numbers=True),
    "ls-files": Options(
        "cdmosutvz", "x", words("cached deleted modified others stage exclude-standard")
    ),
    "ls-tree": Options("drtlz", "", words("name-only name-status long full-name full-tree")),
    "cat-file": Options("tspe"),
    "describe": Options(
        "", "", words("all tags always dirty long abbrev match exact-match contains")
    ),
    "merge-base": Options("a", "", words("all is-ancestor fork-point octopus")),
    "name-rev": Options("", "", words("tags name-only all")),
    "count-objects": Options("vH", "", words("verbose human-readable"), most=0),
    # With an operand these would make something; without one they list.
    "branch": Options("arv", "", words("all list show-current remotes verbose no-color"), most=0),
    "tag": Options("ln", "", words("list sort"), most=0),
    "remote": Options("v", "", words("verbose"), most=0),
    "version": Options(most=0),
}
_BEFORE: Final = frozenset({"--no-pager", "-P", "--no-optional-locks", "--literal-pathspecs"})


def git_problem(line: Sequence[str]) -> str | None:
    """Why these words after `git` do more than look, or None."""
    rest = list(line)
    while rest and rest[0] in _BEFORE:
        del rest[0]
    if rest == ["--version"]:
        return None
    options = _SUBCOMMANDS.get(rest[0]) if rest else None
    if options is None:
        return f"git: {_shown(rest)!r} is not among what only looks"
    operands = options.operands(rest[1:])
    if isinstance(operands, str):
        return f"git {rest[0]}: {operands}"
    # `ext::` and its like are remotes that run a program.
    if any("::" in each for each in operands):
        return "git: an operand names a remote helper"
    return None


def _shown(rest: Sequence[str]) -> str:
    first = rest[0] if rest else ""
    return named(first) if first.startswith("-") else first[:20]
