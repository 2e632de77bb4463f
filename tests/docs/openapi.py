"""Writes console/openapi.json, from which the console's client is made; run it after a change.

.venv/bin/python -m tests.docs.openapi
"""

import asyncio
import json

from comity.app.gateway import assemble_gateway
from comity.http.api_openapi import describe_routes
from tests.docs.pages import ROOT
from tests.support.settings import settings_with

DOCUMENT = ROOT / "console" / "openapi.json"


async def document() -> str:
    """The document as it should be: what a gateway of this program says of its routes."""
    async with assemble_gateway(settings_with()) as parts:
        described = describe_routes(parts.api.routes, parts.api.streams)
    return json.dumps(described, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    DOCUMENT.parent.mkdir(exist_ok=True)
    DOCUMENT.write_text(asyncio.run(document()), encoding="utf-8")
