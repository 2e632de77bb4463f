"""Whether OpenTelemetry is asked for, and its tracer. The packages for it are an extra."""

from collections.abc import Mapping
from typing import Final

from comity.errors import Misconfigured
from comity.telemetry.tracing import Describe, Tracer

ENDPOINTS: Final = (
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
)


def is_asked_for(environ: Mapping[str, str]) -> bool:
    """Return whether OpenTelemetry's environment variables name an endpoint."""
    is_off = environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    return not is_off and any(environ.get(name) for name in ENDPOINTS)


def open_tracer(version: str, describe: Describe, environ: Mapping[str, str]) -> Tracer:
    """Create the OpenTelemetry tracer.

    Raises Misconfigured if the extra is not installed, or a variable has a wrong value.
    """
    try:
        # An optional dependency that takes half a second of CPU to import.
        from comity.telemetry import otel

        return otel.open_tracer(version, describe, environ)
    except ImportError as missing:
        if not (missing.name or "").startswith(("opentelemetry", "grpc")):
            raise
        raise Misconfigured(
            "to send traces, install what that needs: pip install 'comity[otel]'"
        ) from None
    except ValueError as problem:
        raise Misconfigured(f"a variable of OpenTelemetry has a wrong value: {problem}") from None
