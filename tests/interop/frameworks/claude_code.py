"""Lets Claude Code call a tool, and prints what it answers. Arguments: URL, tool.

Its model is a script here, which calls the tool and then repeats the result. Claude Code runs
from the packages of npm in the present folder, in a home of its own.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

PROGRAM = Path("node_modules", ".bin", "claude")


def main(url: str, tool: str) -> None:
    with (
        ThreadingHTTPServer(("127.0.0.1", 0), scripted_model(f"mcp__comity__{tool}")) as model,
        tempfile.TemporaryDirectory() as home,
    ):
        Thread(target=model.serve_forever, daemon=True).start()
        run_claude(url, f"mcp__comity__{tool}", model.server_port, home)
        model.shutdown()


def run_claude(url: str, tool: str, port: int, home: str) -> None:
    servers = {"mcpServers": {"comity": {"type": "http", "url": url}}}
    options = ("--strict-mcp-config", "--mcp-config", json.dumps(servers), "--allowedTools", tool)
    subprocess.run(
        [PROGRAM.absolute(), "-p", "Delete the note.", *options],
        cwd=home,
        env={
            "PATH": os.environ["PATH"],
            "HOME": home,
            "ANTHROPIC_BASE_URL": f"http://127.0.0.1:{port}",
            "ANTHROPIC_API_KEY": "any",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
            "DISABLE_TELEMETRY": "1",
            # The script answers the first request with the call, so the tool must be in it.
            "ENABLE_TOOL_SEARCH": "false",
        },
        stdin=subprocess.DEVNULL,
        check=True,
    )


def scripted_model(tool: str) -> type[BaseHTTPRequestHandler]:
    class ScriptedModel(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_response(200)
            self.end_headers()

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            for event in events_of(next_block(asked, tool)):
                line = f"event: {event['type']}\ndata: {json.dumps(event)}\n\n"
                self.wfile.write(line.encode())

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Print nothing."""

    return ScriptedModel


def next_block(asked: Mapping[str, Any], tool: str) -> dict[str, Any]:
    """Return the call of the tool, or its result once the conversation has it."""
    if tool not in {each["name"] for each in asked.get("tools", ())}:
        return {"type": "text", "text": "A note."}
    content = asked["messages"][-1]["content"]
    results = [each for each in content if is_result(each)] if isinstance(content, list) else []
    if results:
        return {"type": "text", "text": json.dumps(results[0]["content"], ensure_ascii=False)}
    return {"type": "tool_use", "id": "toolu_1", "name": tool, "input": {"name": "draft"}}


def is_result(block: Mapping[str, Any]) -> bool:
    return block["type"] == "tool_result"


def events_of(block: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Return one answer of the model as the events of a stream."""
    is_call = block["type"] == "tool_use"
    if is_call:
        start = {**block, "input": {}}
        delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
    else:
        start = {"type": "text", "text": ""}
        delta = {"type": "text_delta", "text": block["text"]}
    message = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "scripted",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }
    end = {"stop_reason": "tool_use" if is_call else "end_turn", "stop_sequence": None}
    return (
        {"type": "message_start", "message": message},
        {"type": "content_block_start", "index": 0, "content_block": start},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": end, "usage": {"output_tokens": 1}},
        {"type": "message_stop"},
    )


main(*sys.argv[1:])
