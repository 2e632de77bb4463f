"""Tells on stderr what a long run is doing, so that stdout stays the result."""

import sys


def say(line: str) -> None:
    print(f"bench: {line}", file=sys.stderr, flush=True)
