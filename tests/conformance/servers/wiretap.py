"""A stdio server that writes down every byte it is sent, is noisy, and will not go by itself.

Its log (`WIRETAP`, a file) holds each line as it came, in hexadecimal, and how the server was told
to end: the end of its input, then SIGTERM. It obeys neither.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

LOG = Path(os.environ["WIRETAP"])
NOISE = "Grüße, not a message\n"


def note(what: str) -> None:
    with LOG.open("a") as log:
        log.write(what + "\n")


def answer(frame: dict[str, Any]) -> dict[str, Any]:
    if frame["method"] == "initialize":
        info = {"name": "wiretap", "version": "1"}
        version = frame["params"]["protocolVersion"]
        return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
    if frame["method"] == "tools/list":
        return {"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]}
    given = json.dumps(frame.get("params", {}).get("arguments"))
    return {"content": [{"type": "text", "text": given}]}


def refuse_to_end(number: int, frame: object) -> None:
    note(signal.Signals(number).name)


def main() -> None:
    signal.signal(signal.SIGTERM, refuse_to_end)
    note(f"begun by {os.getppid()} as {os.getpid()}")
    while line := sys.stdin.buffer.readline():
        note(line.hex())
        # More than any pipe holds: a reader that does not drain this stops the server for good.
        sys.stderr.buffer.write((NOISE * 10_000).encode() + b"\xff\xfe\n")
        sys.stderr.buffer.flush()
        sys.stdout.write(NOISE)
        frame = json.loads(line)
        if "id" in frame:
            reply = {"jsonrpc": "2.0", "id": frame["id"], "result": answer(frame)}
            sys.stdout.write(json.dumps(reply) + "\n")
        sys.stdout.flush()
    note("end of input")
    while True:
        time.sleep(3600)


if __name__ == "__main__":
    main()
