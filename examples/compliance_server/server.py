"""Nothing secret goes out: MCPL §15.2, a hook that a turn waits for.

    python server.py

Secrets and personal data in what a model said are replaced by [REDACTED] before anybody sees it.
What was taken out is told by its type and place, never by its value.
"""

import logging
import sys

from redaction import redact

from comity.sdk.server import Rewrite, Server, Turn


def compliance_server() -> Server:
    server = Server("compliance")
    redaction = server.feature("compliance.redaction", "Takes secrets out of answers")

    @redaction.after_inference(blocking=True)
    async def look(turn: Turn) -> Rewrite | None:
        text, found = redact(turn.answer or "")
        if not found:
            return None
        return Rewrite(text, {"redactions": [each.on_wire() for each in found]})

    return server


if __name__ == "__main__":
    # Standard output is the protocol's.
    logging.basicConfig(stream=sys.stderr)
    compliance_server().run()
