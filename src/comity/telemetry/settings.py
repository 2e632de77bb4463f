"""The table `[telemetry]`: logs and traces."""

from dataclasses import dataclass
from typing import Literal

from comity.config.fields import setting

type LogFormat = Literal["text", "json"]


@dataclass(frozen=True, slots=True)
class TelemetrySettings:
    """The settings of the log format and of traces."""

    log_format: LogFormat = setting("text", "The format of a line in the log.")
    traces: bool = setting(False, "Whether Comity sends OpenTelemetry traces.")
