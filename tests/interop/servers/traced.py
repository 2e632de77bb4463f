"""The greeter with OpenTelemetry on, as server over stdio or HTTP, or as a client that calls it.

python -m tests.interop.servers.traced stdio
python -m tests.interop.servers.traced http PORT
python -m tests.interop.servers.traced call URL MODE TOOL
"""

import asyncio
import sys

from mcp import Client
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from tests.interop.servers.both_eras import greeter


def record() -> None:
    """Every span leaves as it ends, to where the variables say."""
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)


async def call(url: str, mode: str, tool: str) -> None:
    async with Client(url, mode=mode) as client:
        with trace.get_tracer("test").start_as_current_span("the whole"):
            print(await client.call_tool(tool, {"name": "Ada"}))


if __name__ == "__main__":
    record()
    if sys.argv[1] == "stdio":
        greeter.run("stdio")
    elif sys.argv[1] == "http":
        greeter.run("streamable-http", port=int(sys.argv[2]))
    else:
        asyncio.run(call(*sys.argv[2:5]))
