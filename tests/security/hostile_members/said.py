"""What hostile members say in a topic, by name, and with which error each is answered."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from tests.security.hostile_members.scene import (
    ANA,
    ANYTHING,
    DENIED,
    NARROW,
    OPERATOR,
    PROPOSER,
    PROTOCOL,
    READER,
)

ID = "hostile-1"
"""The id of what an attacker says, where it says one."""


@dataclass(frozen=True)
class Case:
    """One thing that is said, by whom, and the error that answers it; `id` is what that names."""

    name: str
    party: str
    text: bytes
    error: str
    id: str = ID


def envelope(party: str, /, **members: object) -> dict[str, object]:
    return {
        "protocol": PROTOCOL,
        "id": ID,
        "from": party,
        "kind": "chat",
        "payload": {"text": "hostile"},
        **members,
    }


def text_of(members: Mapping[str, object]) -> bytes:
    return json.dumps(members, ensure_ascii=False).encode("utf-8", "surrogatepass")


def said(party: str = ANYTHING, /, **members: object) -> bytes:
    return text_of(envelope(party, **members))


def with_pairs(*pairs: tuple[str, object], party: str = ANYTHING, first: bool = False) -> bytes:
    """An envelope in which some members stand once more; names are written as they are given."""
    more = ",".join(f'"{name}":{json.dumps(value)}' for name, value in pairs).encode()
    inner = said(party)[1:-1]
    return b"{" + (more + b"," + inner if first else inner + b"," + more) + b"}"


def with_payload(raw: bytes, party: str = ANYTHING) -> bytes:
    return said(party, payload="?").replace(b'"?"', raw)


def in_escapes(text: str) -> bytes:
    return "".join(f"\\u{ord(each):04x}" for each in text).encode()


# Somebody else's name.

FROM = {
    "another member": ANA,
    "the gateway": "system:gateway",
    "an operator": OPERATOR,
    "nobody": "",
    "everybody": "*",
    "itself in capitals": ANYTHING.upper(),
    "itself and a space": f"{ANYTHING} ",
    "a space and itself": f" {ANYTHING}",
    "itself and a line break": f"{ANYTHING}\n",
    "itself and a NUL": f"{ANYTHING}\0",
    "itself and a zero-width space": f"{ANYTHING}\u200b",
    "itself with a letter of another alphabet": ANYTHING.replace("a", "\u0430"),
    "itself with a wide colon": ANYTHING.replace(":", "\uff1a"),
    "itself turned round": f"\u202e{ANYTHING}",
    "a shorter one": ANYTHING[:-1],
    "a longer one": f"{ANYTHING}2",
    "without its kind": ANYTHING.removeprefix("agent:"),
    "of another kind": ANYTHING.replace("agent", "person"),
    "percent-encoded": ANYTHING.replace(":", "%3A"),
    "two at once": f"{ANYTHING},{ANA}",
    "a path to another": f"{ANYTHING}/../{ANA}",
    "very long": "a" * 500_000,
}
SPOOFED = [
    *(
        Case(f"from: {name}", ANYTHING, said(**{"from": who}), "auth_violation")
        for name, who in FROM.items()
    ),
    Case(
        "from: another member, in escapes",
        ANYTHING,
        said(**{"from": "?"}).replace(b"?", in_escapes(ANA)),
        "auth_violation",
    ),
    Case(
        "from: another member, for what only it may say",
        PROPOSER,
        said(ANA, kind="mcp/request:tools/call"),
        "auth_violation",
    ),
]

# What only the gateway says.

OURS = {
    "a welcome": "system/welcome",
    "a presence": "system/presence",
    "an error": "system/error",
    "a notice of what was missed": "system/missed",
    "a kind that nobody knows": "system/anything",
    "the family alone": "system",
    "presence alone": "presence",
    "below presence": "presence/join",
    "nothing below it": "system/",
    "a colon for the slash": "system:welcome",
    "only a colon": "system:",
    "presence and a colon": "presence:join",
    "in capitals": "SYSTEM/WELCOME",
    "a capital first": "System/welcome",
    "capitals in the middle": "sYsTeM/error",
    "presence in capitals": "PRESENCE",
    "two slashes": "system//welcome",
    "a way out and in": "system/../chat",
    "a context behind it": "system/error:chat",
    "a star": "system/*",
    "a question mark": "system/?",
    "an encoded slash behind it": "system/%2e%2e/chat",
    "as long as may be": "system/" + "x" * 1_000,
}
ESCAPED = {
    "its first letter in an escape": b'"\\u0073ystem/welcome"',
    "its slash in an escape": b'"system\\u002fwelcome"',
    "its slash behind a backslash": b'"system\\/welcome"',
    "a capital in an escape": b'"\\u0053ystem/welcome"',
}
RESERVED = [
    *(
        Case(f"reserved: {name}", ANYTHING, said(kind=kind), "reserved_kind")
        for name, kind in OURS.items()
    ),
    *(
        Case(
            f"reserved: {name}",
            ANYTHING,
            said(kind="?").replace(b'"?"', kind),
            "reserved_kind",
        )
        for name, kind in ESCAPED.items()
    ),
    Case(
        "reserved: to one member only",
        ANYTHING,
        said(kind="system/welcome", to=[ANA]),
        "reserved_kind",
    ),
    Case(
        "reserved: by somebody who may nothing of the kind",
        READER,
        said(READER, kind="system/error"),
        "reserved_kind",
    ),
]

# Kinds that no reader should have to understand.

ODD_KINDS: dict[str, object] = {
    "a space behind it": "system/welcome ",
    "a space before it": " system/welcome",
    "a line break behind it": "chat\n",
    "a line break and another kind": "chat\nsystem/welcome",
    "a carriage return": "chat\r",
    "a tab": "chat\t",
    "a NUL": "chat\0system/welcome",
    "a DEL": "chat\x7f",
    "an escape of a terminal": "\x1b[2Jchat",
    "a long s": "\u017fystem/welcome",
    "wide letters": "\uff53\uff59\uff53\uff54\uff45\uff4d/welcome",
    "a Cyrillic letter": "\u0455ystem/welcome",
    "a wide slash": "system\uff0fwelcome",
    "a division slash": "system\u2215welcome",
    "a wide colon": "mcp/request\uff1atools/call",
    "a zero-width joiner": "sys\u200dtem/welcome",
    "a soft hyphen": "sys\u00adtem/welcome",
    "turned round": "\u202emetsys/welcome",
    "a combining mark": "chat\u0301",
    "a byte order mark": "\ufeffchat",
    "a no-break space": "chat\u00a0",
    "a line separator": "chat\u2028",
    "a picture": "\U0001f600",
    "nothing": "",
    "too long": "k" * 1_025,
    "a list": ["chat"],
    "a number": 7,
    "null": None,
    "true": True,
    "an object": {"chat": "chat"},
}
ODD = [
    Case(f"kind: {name}", ANYTHING, said(kind=kind), "invalid_envelope")
    for name, kind in ODD_KINDS.items()
]

# What was granted, and what only looks like it.

BEYOND: dict[str, tuple[str, str]] = {
    "a request for a proposal": (PROPOSER, "mcp/request:tools/call"),
    "a proposal in another case": (PROPOSER, "mcp/Proposal:tools/call"),
    "a proposal without its colon": (PROPOSER, "mcp/proposal"),
    "a family that begins alike": (PROPOSER, "mcp/proposals:tools/call"),
    "a request behind a proposal's name": (PROPOSER, "mcp/request:mcp/proposal:tools/call"),
    "a chat with more": (PROPOSER, "chat:system"),
    "below a chat": (PROPOSER, "chat/system"),
    "a chat in capitals": (PROPOSER, "CHAT"),
    "a list in the context": (READER, "mcp/request:tools/call:x/list"),
    "a list in the context of a list": (READER, "mcp/request:x:tools/list"),
    "a method that begins alike": (READER, "mcp/request:resources/reader"),
    "below a method": (READER, "mcp/request:resources/read/../../tools/call"),
    "a method of another": (READER, "mcp/request:tools/call"),
    "no method": (READER, "mcp/request:"),
    "the family alone": (READER, "mcp/request"),
    "lists, but as a proposal": (READER, "mcp/proposal:tools/list"),
    "a tool without its name": (NARROW, "mcp/request:tools/call"),
    "a tool with an empty name": (NARROW, "mcp/request:tools/call:"),
    "another tool": (NARROW, "mcp/request:tools/call:write_file"),
    "a tool that begins alike": (NARROW, "mcp/request:tools/call:read_file2"),
    "a part of a tool's name": (NARROW, "mcp/request:tools/call:read_fil"),
    "a tool in capitals": (NARROW, "mcp/request:tools/call:READ_FILE"),
    "a colon behind the tool": (NARROW, "mcp/request:tools/call:read_file:"),
    "another tool behind the tool": (NARROW, "mcp/request:tools/call:read_file:rm"),
    "another tool before the tool": (NARROW, "mcp/request:tools/call:rm:read_file"),
    "a path behind the tool": (NARROW, "mcp/request:tools/call:read_file/../rm"),
    "a star for the tool": (NARROW, "mcp/request:tools/call:*"),
    "stars for all": (NARROW, "**"),
    "the pattern before its star": (NARROW, "mcp/request:tools/call:ls"),
    "something before the pattern": (NARROW, "mcp/request:tools/call:xls_a"),
    "two colons": (NARROW, "mcp/request::tools/call:read_file"),
    "two slashes": (NARROW, "mcp//request:tools/call:read_file"),
    "two slashes in the method": (NARROW, "mcp/request:tools//call:read_file"),
    "a colon before all": (NARROW, ":mcp/request:tools/call:read_file"),
    "slashes for colons": (NARROW, "mcp/request/tools/call/read_file"),
    "an encoded colon": (NARROW, "mcp/request%3Atools/call:read_file"),
    "a backslash": (NARROW, "mcp\\request:tools/call:read_file"),
    "the family in capitals": (NARROW, "MCP/request:tools/call:read_file"),
    "what begins like the gateway's own": (NARROW, "systems/welcome"),
    "an answer for one who may not answer": (NARROW, "mcp/response:tools/call"),
    "what is denied": (DENIED, "mcp/request:tools/call:rm"),
    "what is denied, left open": (DENIED, "mcp/request:tools/call"),
    "what is denied, left empty": (DENIED, "mcp/request:tools/call:"),
    "what a pattern denies": (DENIED, "mcp/proposal:resources/read:file:///etc/passwd"),
}
CONFUSED = [
    *(
        Case(f"capability: {name}", party, said(party, kind=kind), "capability_violation")
        for name, (party, kind) in BEYOND.items()
    ),
    *(
        Case(f"later kind: {name}", ANYTHING, said(kind=kind), "unknown_kind")
        for name, kind in {
            "a rejection": "mcp/reject",
            "a withdrawal": "mcp/withdraw",
            "a rejection with more": "mcp/reject:tools/call",
        }.items()
    ),
]
