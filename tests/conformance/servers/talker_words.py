"""What the talking server says of itself and of what it offers, so that tests can compare.

`TALKER_NAME` tells two of them apart: each has resources of its own.
"""

import json
import os
from typing import Any

type Frame = dict[str, Any]

NAME = os.environ.get("TALKER_NAME", "talker")
# Ends the call of the tool `wait`. A client may send this notification also on a connection that it
# shares with other principals, where Comity passes none of an extension.
GO = "notifications/roots/list_changed"
VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
PAGE = 7

CAPABILITIES: Frame = {
    "tools": {"listChanged": True},
    "resources": {"subscribe": True, "listChanged": True},
    "prompts": {"listChanged": True},
    "logging": {},
    "completions": {},
}
DECLARED: Frame = json.loads(os.environ.get("TALKER_CAPABILITIES", "null")) or CAPABILITIES
MGP: Frame | None = json.loads(os.environ.get("TALKER_MGP", "null"))
"""What it says of MGP to whoever speaks of it first; None for a server of plain MCP."""

HEALTH: Frame = json.loads(os.environ.get("TALKER_HEALTH", "{}"))
SILENT: list[str] = json.loads(os.environ.get("TALKER_SILENT", "[]"))
"""Requests that it never answers."""

DIARY = os.environ.get("TALKER_DIARY", "")
"""Where it writes down that it was asked to shut down; without a diary it does not know how."""

INITIALIZED: Frame = {
    "capabilities": DECLARED,
    "serverInfo": {"name": NAME, "version": "2.0.0"},
    "instructions": "This server does what it is told.",
}

EVERY_CONTENT: list[Frame] = [
    {"type": "text", "text": "Oslo: 4 °C, sleet"},
    {"type": "image", "data": "iVBORw0KGgo=", "mimeType": "image/png"},
    {"type": "audio", "data": "UklGRg==", "mimeType": "audio/wav"},
    {
        "type": "resource",
        "resource": {"uri": "file:///a.rs", "text": "fn main() {}", "mimeType": "text/x-rust"},
    },
]

_CITY: Frame = {"type": "string", "description": "Where, by its name"}
WEATHER: Frame = {
    "name": "get_weather",
    "title": "Weather",
    "description": "How warm it is in a city now, and what the sky is like.",
    "inputSchema": {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {"city": _CITY, "units": {"$ref": "#/$defs/units"}},
        "required": ["city"],
        "$defs": {"units": {"type": "string", "enum": ["celsius", "fahrenheit"]}},
    },
    "outputSchema": {
        "type": "object",
        "properties": {"temperature": {"type": "number"}, "conditions": {"type": "string"}},
        "required": ["temperature", "conditions"],
    },
    "annotations": {"readOnlyHint": True, "openWorldHint": True},
}
DELETE: Frame = {
    "name": "delete_file",
    "title": "Remove",
    "description": "Takes a file away for good.",
    "inputSchema": {"type": "object", "properties": {"path": {"type": "string"}}},
    "annotations": {
        "readOnlyHint": False,
        "destructiveHint": True,
        "idempotentHint": True,
        "openWorldHint": False,
    },
}


def plain_tool(name: str) -> Frame:
    return {"name": name, "inputSchema": {"type": "object"}}


_VERBS = ("echo", "seen", "answer", "ask", "ask_later", "ask_in_vain", "tell", "report", "log")
TOOLS: list[Frame] = [
    WEATHER,
    DELETE,
    *(plain_tool(name) for name in (*_VERBS, "wait", "touch", "grow", "die", "leave")),
]

TEXT = f"{NAME}://text"
BLOB = f"{NAME}://blob"
FOLDER = f"{NAME}://folder"
NOTES = f"{NAME}://notes/"
RESOURCES: list[Frame] = [
    {"uri": TEXT, "name": "Main", "description": "The entry point", "mimeType": "text/x-rust"},
    {"uri": BLOB, "name": "Picture"},
    {"uri": FOLDER, "name": "Folder"},
]
TEMPLATES: list[Frame] = [
    {
        "uriTemplate": NOTES + "{day}/list",
        "name": "Notes by day",
        "description": "Every note of a day",
        "mimeType": "text/plain",
    }
]
CONTENTS: dict[str, list[Frame]] = {
    TEXT: [{"uri": TEXT, "mimeType": "text/x-rust", "text": 'fn tide() {\n    print("ß");\n}'}],
    BLOB: [{"uri": BLOB, "mimeType": "image/png", "blob": "iVBORw0KGgo="}],
    FOLDER: [{"uri": f"{FOLDER}/a", "text": "a"}, {"uri": f"{FOLDER}/b", "blob": "Yg=="}],
}
PROMPTS: list[Frame] = [
    {
        "name": "review",
        "title": "Review",
        "description": "Looks for mistakes in a program",
        "arguments": [
            {"name": "language", "description": "Programming language", "required": True},
            {"name": "focus", "required": False},
        ],
    }
]


def text(said: str) -> Frame:
    return {"content": [{"type": "text", "text": said}]}


def structured(value: Frame) -> Frame:
    """A result whose structured content also stands as a block of text."""
    return {**text(json.dumps(value)), "structuredContent": value, "isError": False}
