"""The Python SDK 2 as a client whose calls wait for a person, in either era."""

import asyncio
from typing import Any

import httpx2
import mcp_types
from mcp import Client
from mcp.client import ClientRequestContext
from mcp.client.streamable_http import streamable_http_client

from tests.interop.approving.lines import Ask, Order, Said, drive, worded


async def call(order: Order, ask: Ask) -> Said:
    async def elicited(
        context: ClientRequestContext, params: mcp_types.ElicitRequestParams
    ) -> mcp_types.ElicitResult:
        if isinstance(params, mcp_types.ElicitRequestFormParams):
            # Where a form is nested a client may show nothing; then nobody has answered.
            fields: Any = params.requested_schema["properties"]
            assert all(each["type"] not in ("object", "array") for each in fields.values())
        return mcp_types.ElicitResult.model_validate(await ask())

    async def note(progress: float, total: float | None, message: str | None) -> None:
        """It is enough that news came."""

    headers = {"authorization": f"Bearer {order['key']}"}
    heard: dict[str, Any] = {"progress_callback": note} if order["progress"] else {}
    asks: dict[str, Any] = {"elicitation_callback": elicited} if order["elicits"] else {}
    async with httpx2.AsyncClient(headers=headers, timeout=None) as http:
        where = streamable_http_client(order["url"], http_client=http)
        async with Client(where, mode=order["mode"], **asks) as client:
            async with asyncio.timeout(order["patience"]):
                result = await client.call_tool(order["tool"], {}, **heard)
    texts = [part.text for part in result.content if isinstance(part, mcp_types.TextContent)]
    return worded("\n".join(texts), bool(result.is_error), result.meta)


if __name__ == "__main__":
    drive(call)
