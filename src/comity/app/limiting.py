"""How often whoever may call what, and what is called again, as the settings say."""

from collections.abc import Callable

from comity.config import Settings
from comity.kernel.catalog import Catalog, Kind
from comity.kernel.gate import Gate
from comity.kernel.limits import Limits
from comity.kernel.retrying import Retries
from comity.rules.policies import ServerPolicy
from comity.wire.exposition import Family


class Limiting:
    """The limits and the retries of one gateway, and their figures."""

    def __init__(
        self, settings: Settings, catalog: Catalog, policy_of: Callable[[str], ServerPolicy]
    ) -> None:
        self.limits = Limits(
            settings.rates, is_listed=lambda server, name: catalog.has(server, Kind.TOOL, name)
        )
        self._settings = settings
        self._retries = Retries(policy_of, settings.retry_read_only)
        self._gate: Gate | None = None

    def attach(self, gate: Gate) -> Gate:
        self._gate = gate
        self.decide(self._settings)
        return gate

    def decide(self, settings: Settings) -> None:
        """Go by what the operator has written; counts of limits that stay are kept."""
        if settings.rates != self._settings.rates:
            self.limits.replace(settings.rates)
        self._settings = settings
        if self._gate is not None:
            # Where nothing may be called again, no call is asked whether it may.
            self._gate.retries = self._retries if _repeats(settings) else None

    def __call__(self) -> list[Family]:
        return [*self.limits.families(), *self._retries.families()]


def _repeats(settings: Settings) -> bool:
    return bool(settings.retry_read_only) or any(
        tool.idempotent or tool.max_retries or tool.fallback_tool
        for server in settings.servers
        for tool in server.tools.values()
    )
