"""Whether OpenTelemetry is asked for, and its tracer; the packages for it are an extra."""

import importlib
from collections.abc import Mapping
from typing import Final, Protocol, cast

from comity.ports import Describe, Tracer
from comity.wire.errors import Misconfigured

ENDPOINTS: Final = (
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
)


class _Room(Protocol):
    def open_tracer(
        self, version: str, describe: Describe, environ: Mapping[str, str]
    ) -> Tracer: ...


def is_asked_for(environ: Mapping[str, str]) -> bool:
    """Whether the variables that OpenTelemetry knows say where to send to."""
    is_off = environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    return not is_off and any(environ.get(name) for name in ENDPOINTS)


def open_tracer(version: str, describe: Describe, environ: Mapping[str, str]) -> Tracer:
    """Raises Misconfigured where the extra is not installed.

    Loaded by name, because its packages may be missing, and take half a second of CPU to load.
    """
    try:
        room = importlib.import_module("comity.adapters.telemetry_otel")
    except ModuleNotFoundError as missing:
        if not (missing.name or "").startswith("opentelemetry"):
            raise
        raise Misconfigured(
            "to send traces, install what that needs: pip install 'comity[otel]'"
        ) from None
    return cast("_Room", room).open_tracer(version, describe, environ)
