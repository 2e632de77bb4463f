"""For which of our addresses a token was meant. (RFC 8707, RFC 9728)

Rule 1: a token counts for the address that it names and for all below that, and for nothing else.
Rule 2: an address is compared as text, part by part; `/mcp` does not hold `/mcp2`.
"""

from collections.abc import Iterable
from typing import Final

WELL_KNOWN: Final = "/.well-known/oauth-protected-resource"


def paths_for(named: Iterable[str], audience: str) -> tuple[str, ...]:
    """Below which paths of ours a token may be used that names these; none where not for us.

    `audience` is what the whole gateway is called; a token may name a part of it.
    """
    whole = audience.rstrip("/")
    found: list[str] = []
    for each in named:
        bare = each.rstrip("/")
        if bare == whole:
            return ("",)
        if bare.startswith(f"{whole}/") and "://" in whole:
            found.append(bare[len(whole) :])
    return tuple(found)


def is_within(path: str, places: Iterable[str]) -> bool:
    """Whether a path is one of these, or below it."""
    return any(not place or path == place or path.startswith(f"{place}/") for place in places)
