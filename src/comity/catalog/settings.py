"""The table `[discovery]`: search, pinned tools and tool budgets."""

from dataclasses import dataclass
from typing import Final, Literal

from comity.catalog.discovery_messages import MAX_RESULTS
from comity.catalog.toolbelt import PinnedTools
from comity.config.document import ConfigValue
from comity.config.fields import FieldType, number_type, setting
from comity.errors import MalformedMessage
from comity.policy import grants

type DiscoveryMode = Literal["off", "on"]

MAX_PINNED_ENTRIES: Final = 1000
MAX_PINNED_TOOLS: Final = 100
_PRINCIPAL_DESCRIPTION: Final = "the principal, or a pattern such as agent:*; default: all"
_TOOLS_DESCRIPTION: Final = "which tools, each as server/tool; the first ones first"
_MEMBERS: Final = ("principal", "tools")


def _read_principal(value: ConfigValue) -> str:
    try:
        return grants.parse_subject_pattern(value.text())
    except MalformedMessage as refused:
        raise value.wrong(str(refused)) from None


def _read_tool(value: ConfigValue) -> tuple[str, str]:
    server, separator, name = value.text().partition("/")
    if not (server and separator and name) or "*" in value.text() or len(value.text()) > 500:
        raise value.wrong("must name one tool, as files/read_file")
    return server, name


def _read_entry(value: ConfigValue) -> PinnedTools:
    table = value.table()
    for stranger in value.unknown_keys(_MEMBERS):
        raise stranger
    if "tools" not in table:
        raise value.wrong("has no tools; name some, as files/read_file")
    tools = tuple(_read_tool(each) for each in table["tools"].items())
    if len(tools) > MAX_PINNED_TOOLS:
        raise table["tools"].wrong(f"names more than {MAX_PINNED_TOOLS}; no budget is large enough")
    return PinnedTools(_read_principal(table["principal"]) if "principal" in table else "*", tools)


def _read_entries(value: ConfigValue) -> tuple[PinnedTools, ...]:
    items = value.items()
    if len(items) > MAX_PINNED_ENTRIES:
        raise value.wrong(f"has more than {MAX_PINNED_ENTRIES} entries")
    return tuple(_read_entry(each) for each in items)


PINNED: Final = FieldType(
    _read_entries,
    {
        "type": "array",
        "maxItems": MAX_PINNED_ENTRIES,
        "items": {
            "type": "object",
            "properties": {
                "principal": {"type": "string", "description": _PRINCIPAL_DESCRIPTION},
                "tools": {
                    "type": "array",
                    "maxItems": MAX_PINNED_TOOLS,
                    "items": {"type": "string", "pattern": "^[^/*]+/[^*]+$"},
                    "description": _TOOLS_DESCRIPTION,
                },
            },
            "required": ["tools"],
            "additionalProperties": False,
        },
    },
)


# The gateway's own tools take about 700 tokens.
_WHOLE: Final = number_type(1_500, 10_000_000)
_SHARE: Final = number_type(0, 10_000_000)


@dataclass(frozen=True, slots=True)
class DiscoverySettings:
    """The settings of tool search, pinned tools and token budgets."""

    mode: DiscoveryMode = setting(
        "off", "`on`: clients list a few tools, and find the others by searching."
    )
    pinned: tuple[PinnedTools, ...] = setting((), "The tools that are listed always then.", PINNED)
    max_tokens: int = setting(
        8000, "The tokens of tool definitions in the context of one client.", _WHOLE
    )
    pinned_reserve: int = setting(
        2000, "The share of them for pinned tools and the tools of the gateway.", _SHARE
    )
    discovery_reserve: int = setting(
        3000, "The share of them for the results of one search.", _SHARE
    )
    cache_limit: int = setting(
        3000, "The share of them for tools that the client used or asked for.", _SHARE
    )
    default_results: int = setting(
        8, "The number of results of a search, by default.", number_type(1, MAX_RESULTS)
    )
    log_searches: bool = setting(True, "Whether the audit log records searches and their results.")
    embedder: str = setting(
        "auto", "The source of vectors: `auto`, `minilm`, `none`, or the name of a plugin."
    )
    model_folder: str = setting(
        "", "The folder with the weights of `minilm`, where no package brings them."
    )
    vectors_folder: str = setting("", "The folder for vectors; unset, beside the SQLite store.")
