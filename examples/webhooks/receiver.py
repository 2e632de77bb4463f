"""Receives Comity's events: checks each signature, takes each event once, prints it.

    SECRET=whsec_... python receiver.py 9000

The secret is yours: draw one, and give it to events/subscribe as delivery.secret.
"""

import base64
import hashlib
import hmac
import json
import os
import sqlite3
import sys
import time
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer

SECRET = base64.b64decode(os.environ["SECRET"].removeprefix("whsec_"))
SEEN = sqlite3.connect(os.environ.get("SEEN", "seen.db"))
SEEN.execute("CREATE TABLE IF NOT EXISTS seen (id TEXT PRIMARY KEY)")


def is_genuine(headers: Mapping[str, str], body: bytes) -> bool:
    moment = headers["webhook-timestamp"]
    if abs(time.time() - int(moment)) > 300:
        return False  # an old post, that somebody plays again
    signed = f"{headers['webhook-id']}.{moment}.".encode() + body
    good = base64.b64encode(hmac.digest(SECRET, signed, hashlib.sha256)).decode()
    given = headers["webhook-signature"].split()
    return any(hmac.compare_digest(f"v1,{good}", each) for each in given)


class Receiver(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        body = self.rfile.read(int(headers["content-length"]))
        if not is_genuine(headers, body):
            return self.answer(401, {})
        event = json.loads(body)
        if event.get("type") == "verification":
            # Only now does Comity begin to post: whoever subscribed us, we want it.
            return self.answer(200, {"challenge": event["challenge"]})
        # What is written down here is what says yes: a 2xx is never taken back.
        with SEEN:
            is_new = SEEN.execute(
                "INSERT OR IGNORE INTO seen VALUES (?)", [headers["webhook-id"]]
            ).rowcount
        if is_new:
            print(event["timestamp"], event["name"], json.dumps(event["data"]), flush=True)
        return self.answer(200, {})

    def answer(self, status: int, said: Mapping[str, str]) -> None:
        body = json.dumps(said).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Nothing but the events is told."""


if __name__ == "__main__":
    HTTPServer(("127.0.0.1", int(sys.argv[1])), Receiver).serve_forever()
