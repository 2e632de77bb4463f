"""A server that puts hostile texts into everything it says: definitions, results and stderr."""

import json
import sys
from typing import Any

from tests.console.hostile_texts import TEXTS

VERSION = "2025-11-25"


def tool_of(place: int, text: str) -> dict[str, Any]:
    return {
        "name": f"tool_{place:03}",
        "title": text,
        "description": text,
        "inputSchema": {
            "type": "object",
            "title": text,
            "properties": {
                "value": {"type": "string", "title": text, "description": text},
                text: {"type": "string", "enum": [text, "other"]},
            },
        },
        "annotations": {"title": text, "destructiveHint": True},
    }


def answer(asked: dict[str, Any]) -> dict[str, Any]:
    match asked["method"]:
        case "initialize":
            about = {"name": TEXTS[0], "version": TEXTS[1], "title": TEXTS[2]}
            return {
                "protocolVersion": VERSION,
                "capabilities": {"tools": {}},
                "serverInfo": about,
                "instructions": "\n".join(TEXTS),
            }
        case "tools/list":
            return {"tools": [tool_of(place, text) for place, text in enumerate(TEXTS)]}
        case "tools/call":
            said = "\n".join(TEXTS)
            return {"content": [{"type": "text", "text": said}], "structuredContent": {said: said}}
        case _:
            return {}


def main() -> None:
    for text in TEXTS:
        print(text.encode("utf-8", "replace").decode(), file=sys.stderr, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        if "id" in asked and "method" in asked:
            said = {"jsonrpc": "2.0", "id": asked["id"], "result": answer(asked)}
            print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
