"""The table `[registry]`: tools as REST endpoints, and the registry that servers come from."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from comity.config.fields import COUNT, pattern_type, setting

_SOURCE: Final = pattern_type(r"https?://[^\s/?#@]+(?:/[^\s?#]*)?", "https://registry.example.org")


@dataclass(frozen=True, slots=True)
class RegistrySettings:
    source_url: str = setting(
        "https://registry.modelcontextprotocol.io",
        "The MCP registry that `comity servers search` and `comity servers add` read.",
        _SOURCE,
    )
    tool_timeout: timedelta = setting(timedelta(seconds=30), "How long a call at /tools may take.")
    validation_timeout: timedelta = setting(
        timedelta(seconds=5), "How long the validation of its arguments may take."
    )
    discovery_timeout: timedelta = setting(
        timedelta(seconds=2), "How long an answer about the tools may take."
    )
    queue_timeout: timedelta = setting(
        timedelta(milliseconds=500), "How long a call may wait for a free slot at its server."
    )
    calls_per_server: int = setting(64, "The calls of /tools at one server at once.", COUNT)
    documentation_url: str = setting("", "The URL of these docs, for the errors of /tools.")
