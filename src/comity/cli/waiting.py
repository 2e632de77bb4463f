"""A call that waits for approval: what is told of it, and what the requester is asked.

Only the gateway says that a call waits. A server could name any ask in a message of its own, so
each is looked up before anything is told of it.
"""

import contextlib
from collections.abc import Callable
from typing import Any

from comity.cli.asking import Answer, Gateway, members
from comity.cli.prompting import Person
from comity.rules.ask_forms import Way
from comity.rules.ask_words import command
from comity.wire.asks import META
from comity.wire.errors import Misconfigured, Unavailable

type Frame = dict[str, Any]


class Waiting:
    """What one call waits for, if it waits for approval."""

    def __init__(self, gateway: Gateway, tool: Answer, say: Callable[[str], None]) -> None:
        self._gateway = gateway
        self._tool = tool
        self._say = say
        self._strange: set[str] = set()
        self._view: Answer = {}

    def heard(self, params: Frame) -> bool:
        """Whether a message is about the approval of this call; what it waits for is told once."""
        id = members(members(params.get("_meta")).get(META)).get("id")
        if not isinstance(id, str) or id in self._strange:
            return False
        if id != self._view.get("id"):
            view = self._looked_up(id)
            if view is None:
                self._strange.add(id)
                return False
            self._view = view
            self._say(f"this call waits for approval (request {id}). {self.way}")
        return True

    @property
    def way(self) -> Way:
        """Who can approve it, and how: at the gateway that was asked, since it is there."""
        id, url = self._view["id"], self._gateway.url
        because = self._view["why_not"] or ""
        return Way(self._view["approvers"], f"{url}/asks/{id}", command(id, url), because)

    def answer(self, question: Frame, person: Person) -> Frame | None:
        """What is said to a question about it; nothing where nobody here can decide it."""
        if "url" in question:
            # It was told already; that a page was shown decides nothing.
            return {"action": "accept"}
        return person.answer(question) if person.is_there else None

    @property
    def too_long(self) -> str:
        """What to do if the call did not run in time; empty where it was not for the approval."""
        if not self._view or self._looked_up(self._view["id"]) is None:
            return ""
        return (
            f"the call still waits for approval (request {self._view['id']}); nothing has run. "
            f"{self.way} Then run the same command again"
        )

    def _looked_up(self, id: str) -> Answer | None:
        """The open ask about this very tool, as the gateway has it."""
        with contextlib.suppress(Misconfigured, Unavailable):
            view = self._gateway.get("asks", id)
            about = (view.get("server"), view.get("tool"))
            is_open = view.get("state") in ("pending", "deferred")
            if is_open and about == (self._tool["server"], self._tool["tool"]):
                return view
        return None
