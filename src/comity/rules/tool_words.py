"""What the gateway's own tools answer, in words that a model reads; the same stands as data beside.

Rule 1: whoever finds a tool can call it by what it reads here alone: its name and its schema whole.
Rule 2: what is missing is said, and what can be done about it.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Raw

from comity.rules.phrases import count_noun
from comity.wire import jsonrpc
from comity.wire.errors import MalformedMessage
from comity.wire.tool_discovery import Outcome

type Result = Mapping[str, Any]
"""What is answered as data; a tool in it is its definition, whose members are as they came."""

_LONGEST_DESCRIPTION: Final = 2000
_HOW: Final = 'Call one by its name, or with call_tool {"name": "...", "arguments": {...}}.'
_INDEX: Final = "Categories of tools and how many are in each. Name one in filter.categories."
NEXT: Final[Mapping[str, str]] = {
    Outcome.FULFILLED: "These tools are in your list now; call them by their names.",
    Outcome.PARTIAL: "Some of what you want is in your list now; for the rest there is no tool.",
    Outcome.UNAVAILABLE: "There is no tool for this that you may call. Try other words.",
    Outcome.PENDING_APPROVAL: "There are tools for this, and somebody has to approve their use.",
    Outcome.CREATING: "There is no tool for this yet; you may write one.",
}


def found(result: Result) -> str:
    """What a search brought."""
    tools, omitted = result["tools"], result.get("omitted", ())
    index = _categories(result.get("categories", ()))
    if index and not tools and not omitted:
        return "\n".join([_INDEX, *index])
    if not tools and not omitted:
        return (
            "No tool that you may call was found. Try other words, fewer filters, or several "
            "queries at once."
        )
    head = f"{len(tools)} of {count_noun(result['total_available'], 'tool')}, the best first."
    if "fallback_strategy" in result:
        head += f" Searched by {result['fallback_strategy']}, since nothing better is at hand."
    lines = [head, *_tools(tools), *index]
    if omitted:
        named = ", ".join(omitted)
        lines.append(f"Left out, since their definitions do not fit into the budget: {named}")
    return "\n".join([*lines, _HOW])


def requested(result: Result) -> str:
    """What became of a request."""
    lines = [f"{result['status']}: {NEXT[result['status']]}", *_tools(result["tools_loaded"])]
    for lacking in result["tools_unavailable"]:
        what = lacking.get("name") or lacking.get("capability", "")
        why = lacking.get("message") or lacking["reason"]
        ask = f" (ask {lacking['ask_id']})" if "ask_id" in lacking else ""
        lines.append(f"Not available: {what}: {why}{ask}")
    added = result["context_tokens_added"]
    were = "was" if added == 1 else "were"
    lines.append(f"{count_noun(added, 'token')} {were} added to your list of tools.")
    return "\n".join(lines)


def session(result: Result) -> str:
    """What is in somebody's list, and what it costs."""
    about = "" if result["token_count"]["exact"] else "about "
    lines = [f"Your tools take {about}{result['total_tokens']} of {result['max_tokens']} tokens."]
    for kind in ("pinned", "cached", "evicted"):
        names = ", ".join(result.get(kind, ()))
        if names or kind != "evicted":
            lines.append(f"{kind}: {names or 'none'}")
    return "\n".join(lines)


def _categories(categories: Sequence[Result], within: str = "") -> list[str]:
    """Each category by its whole path, and below it those that it holds."""
    lines: list[str] = []
    for each in categories:
        path = f"{within}{each['name']}"
        lines += [f"{path} ({each['tools']})", *_categories(each["categories"], f"{path}/")]
    return lines


def _tools(tools: Sequence[Result]) -> list[str]:
    lines: list[str] = []
    for number, tool in enumerate(tools, 1):
        told = f"risk {tool['security']['risk_level']}"
        if "relevance_score" in tool:
            told = f"score {tool['relevance_score']}, {told}"
        said = f"{number}. {_text(tool['name'])} ({told}): {_text(tool.get('description'))}"
        schema = bytes(tool["inputSchema"]).decode() if "inputSchema" in tool else "{}"
        lines += [said.removesuffix(": "), f"   inputSchema: {schema}"]
    return lines


def _text(member: Raw | None) -> str:
    """A member of a definition on one line; its server may have written it on many."""
    try:
        said = jsonrpc.text(member) or ""
    except MalformedMessage:
        said = ""
    return " ".join(said.split())[:_LONGEST_DESCRIPTION]
