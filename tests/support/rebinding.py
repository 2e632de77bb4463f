"""Names that resolve to a public address when checked and to another one later."""

import itertools
from collections.abc import Sequence
from typing import Any

PUBLIC = "93.184.215.14"
PRIVATE = (
    "127.0.0.1",
    "127.8.8.8",
    "0.0.0.0",  # an address that must not be dialled
    "10.0.0.1",
    "172.16.0.1",
    "192.168.0.1",
    "169.254.169.254",
    "100.64.0.1",
    "198.18.0.1",
    "224.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "fe80::1",
    "fc00::1",
    "ff02::1",
    "::ffff:127.0.0.1",
    "::ffff:a9fe:a9fe",
    "64:ff9b::7f00:1",
    "2002:7f00:1::",
    "2001:db8::1",
)


class Rebinding:
    """A resolver that gives a public and a private address by turns, and what was dialled."""

    def __init__(self, private: str, *, first: bool = True, mixed: bool = False) -> None:
        answers = ((PUBLIC,), (private,)) if first else ((private,), (PUBLIC,))
        self._answers = itertools.cycle(((PUBLIC, private),) if mixed else answers)
        self.asked = list[str]()
        self.dialled = list[str]()

    async def resolve(self, name: str) -> Sequence[str]:
        self.asked.append(name)
        return next(self._answers)

    async def dial(self, make: Any, host: str, port: int, **_: Any) -> Any:
        self.dialled.append(host)
        raise ConnectionRefusedError(host)


def rebindings(private: str) -> tuple[Rebinding, ...]:
    """Resolvers that give this address second, first, and together with a public one."""
    return Rebinding(private), Rebinding(private, first=False), Rebinding(private, mixed=True)
