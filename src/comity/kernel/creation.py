"""Tools that do not exist yet: an agent that lacks one may write it. (MGP §16.6, D-31)

Rule 1: it is off, unless the operator switched it on, approves by policy what servers need, and
        granted this very agent to have its code run. Whoever lacks one of these is told no more
        than that there is no such tool.
Rule 2: what is written is registered like any server: looked at first, confined, and gone with the
        session in which it was made.
"""

import re
from collections.abc import Mapping
from typing import Final

from comity.kernel.own_methods import Asked
from comity.kernel.registration_rights import Rights
from comity.rules.code_safety import CodePolicy, hints
from comity.wire.negotiation import Extension
from comity.wire.registration import MOST_CODE, REGISTER
from comity.wire.registration import Wanted as WantedServer
from comity.wire.tool_discovery import Wanted

_OTHERS: Final = re.compile(r"[^a-z0-9]+")
_LONGEST: Final = 40
_HOW: Final = (
    "Write one Python file that defines a function for each tool: its parameters, with types, are "
    "the arguments, its docstring is the description, and what it returns is the answer. Import "
    "nothing but the modules that are named here. Then send the text as `code`, with this id."
)


class Creation:
    """Who lets tools be made, of those who may have them made."""

    def __init__(self, rights: Rights, policy: CodePolicy) -> None:
        self._rights = rights
        self._hints = {**hints(policy), "max_code_size_bytes": MOST_CODE}

    async def create(self, asked: Asked, wanted: Wanted) -> Mapping[str, object] | None:
        """What its answer says beside its status; None where this one may not have any made."""
        knows_how = asked.terms is not None and Extension.DISCOVERY in asked.terms.extensions
        if not knows_how or not self._rights.code_goes_unasked:
            return None
        id = self._free(asked, wanted)
        if id is None:
            return None
        return {
            "creation": {
                "method": REGISTER,
                "params": {"id": id, "transport": "stdio", "code": ""},
                "instructions": _HOW,
                "described": [*wanted.capabilities] or [wanted.context],
                "language": "python",
                "code_safety": self._hints,
            }
        }

    def _free(self, asked: Asked, wanted: Wanted) -> str | None:
        """An id by which it could be registered now; None where none could."""
        words = "-".join((*wanted.capabilities, *wanted.context.split())).lower()
        plain = _OTHERS.sub("-", words)[:_LONGEST].strip("-") or "tool"
        for number in range(1, self._rights.allowed.most + 2):
            id = f"{self._rights.allowed.namespace}.{plain}{f'-{number}' * (number > 1)}"
            # Any code would do: of this it is not yet known what it is.
            if self._rights.why_not(asked.actor, WantedServer(id, code=" ")) is None:
                return id
        return None
