"""What an operator decided of a server and of its tools; whatever the server says of them itself.

Each default here is that of one person at one machine; `comity.app` decides which hold elsewhere.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from comity.rules.permissions import ApprovalPolicy
from comity.rules.validators import UNRULED, Rules
from comity.wire.security import Risk, Trust


class RequireApproval(StrEnum):
    """Which calls need a person's approval. (D-13)"""

    ALWAYS = "always"
    DANGEROUS = "dangerous"
    NEVER = "never"


class OnDenied(StrEnum):
    """What a denied permission does to its server. (D-10)"""

    DEGRADE = "degrade"
    REJECT = "reject"


class Definitions(StrEnum):
    """When a tool is accepted as it is described. (attack 2)"""

    FIRST_SEEN = "first_seen"
    APPROVE = "approve"
    OFF = "off"


class Suspicious(StrEnum):
    """What is done about a definition that may deceive its reader. (attacks 1 and 3)

    `refuse` is about what hides or imitates; `strict` is also about names that two servers share.
    """

    SHOW = "show"
    REFUSE = "refuse"
    STRICT = "strict"


class Fallback(StrEnum):
    """What is done with validators that nobody asked for, but a tool's arguments suggest."""

    OFF = "off"
    WARN = "warn"
    ON = "on"


@dataclass(frozen=True, slots=True)
class ToolPolicy:
    """What an operator decided of one tool.

    `validators` are applied whatever the server declared; `arguments` says what an argument is, by
    its name: a command, a url; `inspect` how strict they are. Three are about calling it
    again, or another instead.
    """

    risk: Risk | None = None
    validators: tuple[str, ...] = ()
    arguments: Mapping[str, str] = field(default_factory=dict[str, str])
    require_approval: RequireApproval | None = None
    disabled: bool = False
    cost: int = 1
    idempotent: bool = False
    max_retries: int = 0
    fallback_tool: str = ""
    inspect: Rules = UNRULED
    # How many people must say yes, where any has to.
    approvals: int = 1


NO_TOOL_POLICY: Final = ToolPolicy()


@dataclass(frozen=True, slots=True)
class ServerPolicy:
    """What an operator decided of one server, and of its tools by their names or patterns."""

    approval: ApprovalPolicy = ApprovalPolicy.AUTO_APPROVE
    permissions: tuple[str, ...] = ()
    on_denied: OnDenied = OnDenied.DEGRADE
    trust: Trust = Trust.STANDARD
    risk: Risk | None = None
    definitions: Definitions = Definitions.FIRST_SEEN
    suspicious: Suspicious = Suspicious.REFUSE
    fallback: Fallback = Fallback.WARN
    require_approval: RequireApproval = RequireApproval.NEVER
    # Whether nobody is asked even where a tool's own label wants it.
    never_asks: bool = False
    tools: Mapping[str, ToolPolicy] = field(default_factory=dict[str, ToolPolicy])
    # How much of a rate a call of each risk takes; one where nothing is said.
    costs: Mapping[Risk, int] = field(default_factory=dict[Risk, int])
    # Whether it is told all that happens, if it wants to be. (MGP §6.3)
    audit: bool = False

    def cost_of(self, tool: ToolPolicy, risk: Risk) -> int:
        """What one call counts as: the more of what is said of the tool and of its risk."""
        return max(tool.cost, self.costs.get(risk, 1))

    def of_tool(self, name: str) -> ToolPolicy:
        """By its own name; else by the pattern that says most of it."""
        own = self.tools.get(name)
        if own is not None:
            return own
        patterns = [each for each in self.tools if "*" in each and _covers(each, name)]
        # Of two that are equally long the earlier letter, so that no order of a file counts.
        closest = min(patterns, key=lambda each: (-len(each), each), default=None)
        return NO_TOOL_POLICY if closest is None else self.tools[closest]


def _covers(pattern: str, name: str) -> bool:
    parts = (re.escape(part) for part in pattern.split("*"))
    return re.fullmatch(".*".join(parts), name, re.DOTALL) is not None
