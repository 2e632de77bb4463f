"""Limits on the resources that one principal may hold at once."""

from collections.abc import Generator
from contextlib import contextmanager
from datetime import timedelta
from typing import Final

from comity.errors import EXHAUSTED, Unavailable
from comity.mcp.actors import ANONYMOUS, LOCAL
from comity.mcp.refusals import Refusal

RETRY_AFTER: Final = timedelta(seconds=1)
_UNLIMITED_PRINCIPALS: Final = frozenset({LOCAL.party, ANONYMOUS.party})


class PrincipalShares:
    """Counts one kind of resource for each principal.

    `resource_name` is its name in the plural. `setting` is the name of the setting that limits it.
    """

    __slots__ = ("_count_by_principal", "limit", "resource_name", "setting")

    def __init__(self, resource_name: str, setting: str, limit: int) -> None:
        self.resource_name = resource_name
        self.setting = setting
        self.limit = limit
        self._count_by_principal: dict[str, int] = {}

    @property
    def holders(self) -> int:
        """The number of principals that hold any of the resource."""
        return len(self._count_by_principal)

    def count_of(self, principal: str) -> int:
        return self._count_by_principal.get(principal, 0)

    def acquire(self, principal: str, amount: int = 1) -> bool:
        """Count `amount` more. Returns False and counts nothing if that exceeds the limit."""
        held = self._count_by_principal.get(principal, 0) + amount
        if held > self.limit and principal not in _UNLIMITED_PRINCIPALS:
            return False
        self._count_by_principal[principal] = held
        return True

    def is_full(self, principal: str, amount: int = 1) -> bool:
        """Whether `amount` more would exceed the limit.

        The limit does not apply where all callers share one principal.
        """
        held = self._count_by_principal.get(principal, 0)
        return held + amount > self.limit and principal not in _UNLIMITED_PRINCIPALS

    def release(self, principal: str, amount: int = 1) -> None:
        """Release `amount`, which the principal must have taken before."""
        held = self._count_by_principal.get(principal, 0) - amount
        if held > 0:
            self._count_by_principal[principal] = held
        else:
            self._count_by_principal.pop(principal, None)

    @contextmanager
    def hold(self, principal: str) -> Generator[None]:
        """Hold one more inside the context. Raises Unavailable if that exceeds the limit."""
        if not self.acquire(principal):
            raise self.error()
        try:
            yield
        finally:
            self.release(principal)

    def error(self) -> Unavailable:
        return Unavailable(self._reason, EXHAUSTED, RETRY_AFTER)

    def refusal(self) -> Refusal:
        """The same problem as the refusal of a call."""
        details: dict[str, object] = {"limit": self.limit}
        return Refusal(EXHAUSTED, self._reason, RETRY_AFTER, details=details)

    @property
    def _reason(self) -> str:
        more = f", or ask the operator for a larger {self.setting} in [limits]"
        end = "end one of them and try again"
        return (
            f"you have {self.limit} {self.resource_name} already; "
            f"{end}{more if self.setting else ''}"
        )
