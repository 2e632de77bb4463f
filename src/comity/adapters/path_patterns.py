"""Patterns of paths, matched by wcmatch: `*` stays within one part, `**` goes across them."""

from functools import lru_cache
from typing import Final

from wcmatch import glob

_FLAGS: Final = glob.GLOBSTAR | glob.DOTGLOB | glob.FORCEUNIX


@lru_cache(1024)
def _compiled(pattern: str, ignore_case: bool) -> "glob.WcMatcher[str]":
    flags = _FLAGS | (glob.IGNORECASE if ignore_case else glob.CASE)
    return glob.compile(pattern, flags=flags)


def matches(pattern: str, path: str, ignore_case: bool) -> bool:
    """Whether the pattern covers the path."""
    return _compiled(pattern, ignore_case).match(path)
