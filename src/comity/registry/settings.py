"""The table `[registry]`: tools as REST endpoints."""

from dataclasses import dataclass
from datetime import timedelta

from comity.config.fields import COUNT, setting


@dataclass(frozen=True, slots=True)
class RegistrySettings:
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
