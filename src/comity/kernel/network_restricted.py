"""The validator `network_restricted`: no argument leads to a place that is not public. (MGP §4.5)

A name is resolved once for each call, and one bad answer refuses it. What the tool's own server
resolves later may be another answer: that is for the sandbox's way out to hold. (security.md §3.3)
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence

from comity.rules import urls
from comity.rules.addresses import answers_problem
from comity.rules.arguments import Found, texts
from comity.rules.meanings import meaning_of
from comity.rules.refusals import Refusal
from comity.rules.validators import NETWORK_RESTRICTED, Rules, Verdict, blocked
from comity.wire.tools import Tool

type Resolve = Callable[[str], Awaitable[Sequence[str]]]


class NetworkRestricted:
    """Answers at once, unless there are names to resolve."""

    def __init__(self, resolve: Resolve) -> None:
        self._resolve = resolve

    def __call__(
        self, tool: Tool, arguments: Mapping[str, object], rules: Rules
    ) -> Verdict | Awaitable[Verdict]:
        found = texts(arguments)
        if found is None:
            return blocked(NETWORK_RESTRICTED, "its arguments hold more than can be looked at")
        names: dict[str, Found] = {}
        for each in found:
            meaning = meaning_of(each.where, each.name, rules.arguments)
            seen = urls.examine(each.text, meaning, rules)
            if seen.problem is not None:
                return _refusal(seen.problem, each)
            names |= dict.fromkeys(seen.names, each)
        if len(names) > urls.MOST_NAMES:
            return blocked(NETWORK_RESTRICTED, f"it names over {urls.MOST_NAMES} hosts")
        return self._resolved(names) if names else None

    async def _resolved(self, names: Mapping[str, Found]) -> Verdict:
        for name, found in names.items():
            problem = answers_problem(await self._resolve(name))
            if problem is not None:
                return _refusal(problem, found)
        return None


def _refusal(problem: str, found: Found) -> Refusal:
    return blocked(NETWORK_RESTRICTED, problem, found.where, "Use an address that is public.")
