"""A policy that a test changes while calls wait."""

from comity.errors import POLICY_UNKNOWN, Unavailable
from comity.mcp.actors import Actor
from comity.policy.grants import Decision, Effect
from comity.policy.snapshot import AllowAll
from comity.policy.visibility import ServerVisibility


class ChangingPolicy(AllowAll):
    """Allows everything except what a test has changed."""

    def __init__(self) -> None:
        self.is_known = True
        self.effects: dict[str, Effect] = {}

    def require_fresh(self) -> None:
        if not self.is_known:
            raise Unavailable("the policy is unknown", POLICY_UNKNOWN)

    def authorize(
        self, actor: Actor, verb: str, server: str, name: str, view: str = ""
    ) -> Decision:
        self.require_fresh()
        return Decision(self.effects.get(name, Effect.ALLOW), "as the test says")

    def server_visibility(self, actor: Actor, verb: str, server: str) -> ServerVisibility:
        self.require_fresh()
        return ServerVisibility(True, (frozenset(self.effects),) if self.effects else ())
