"""The users that servers run as if the gateway is root: one for each running server."""

import os
import secrets
from contextlib import suppress
from typing import Final

try:
    import grp
    import pwd
except ImportError:  # only Unix has these databases
    grp = pwd = None

# Neither distributions nor systemd assign these, and a container with 65,536 users has them.
_USERS: Final = range(60706, 61184)


class ServerUsers:
    """Lends users that nothing else runs as. The group of a user has the same number."""

    def __init__(self) -> None:
        self._lent: set[int] = set()

    def take(self) -> int:
        """Return a free user, or 0 if this process is not root or all of them are in use."""
        if pwd is None or os.geteuid() != 0:
            return 0
        free = [user for user in _USERS if user not in self._lent and not _is_known(user)]
        if not free:
            return 0
        # Another gateway of this machine takes from the same range.
        user = secrets.choice(free)
        self._lent.add(user)
        return user

    def give_back(self, user: int) -> None:
        self._lent.discard(user)


def _is_known(user: int) -> bool:
    assert pwd is not None
    assert grp is not None
    with suppress(KeyError):
        return bool(pwd.getpwuid(user))
    with suppress(KeyError):
        return bool(grp.getgrgid(user))
    return False
