"""A plain tool call is decoded with its parameters at once, and means the same as in general."""

import json
from collections import Counter
from collections.abc import Callable
from typing import Final
from unittest.mock import patch

from comity.errors import MalformedMessage
from comity.mcp import jsonrpc
from comity.mcp.jsonrpc import FROM_CLIENTS, UNSET, ExtendedFrame, Frame, FrameLimits
from tests.mcp.tool_call_frames import FrameWriter, find_no_tool_call, meaning_of
from tests.support.cases import loop_over

FRAMES: Final = 100_000
BATCH: Final = 1000
LIMITS: Final = FrameLimits(frame_bytes=3000, depth=8, values=60, string_bytes=600)


def outcome_of(work: Callable[[], object]) -> object:
    """Return what the work returns, or which error it raises."""
    try:
        return work()
    except MalformedMessage as error:
        return (type(error), str(error), error.fault)


def described(frame: Frame) -> dict[str, object]:
    """Return what a frame says, apart from its encodings."""
    members = frame.members if isinstance(frame, ExtendedFrame) else None
    return {
        "type": type(frame),
        "id": (type(frame.id), frame.id),
        "method": frame.method,
        "members": members and {name: bytes(raw) for name, raw in members.items()},
        "parameters": outcome_of(lambda: {k: bytes(v) for k, v in frame.parameters.items()}),
        "arguments": repr(outcome_of(lambda: frame.arguments)),
        "result": frame.result is UNSET or bytes(frame.result),
        "error": frame.error is UNSET or bytes(frame.error),
    }


def encodings(frame: Frame) -> dict[str, object]:
    """Return what is sent for a frame, and for the frame after each change that Comity makes."""

    def changed(change: Callable[[Frame], Frame]) -> object:
        return outcome_of(lambda: jsonrpc.encode_frame(change(frame)))

    return {
        "same": changed(lambda same: same),
        "id": changed(lambda same: jsonrpc.with_id(same, 7)),
        "text id": changed(lambda same: jsonrpc.with_id(same, 'a"b,')),
        "two ids": changed(lambda same: jsonrpc.with_id(jsonrpc.with_id(same, ","), -1)),
        "name": changed(lambda same: jsonrpc.with_tool_name(same, "x")),
        "both": changed(lambda same: jsonrpc.with_id(jsonrpc.with_tool_name(same, '"'), 8)),
    }


def decode_all(batch: list[bytes], limits: FrameLimits) -> list[object]:
    return [outcome_of(lambda data=data: jsonrpc.decode_frame(data, limits)) for data in batch]


def compare(data: bytes, typed: object, general: object) -> str:
    """Compare a frame that was decoded in both ways, and return the way that it took."""
    if not isinstance(typed, Frame) or not isinstance(general, Frame):
        assert typed == general, data
        return "refused"
    if typed.tool is None:
        # Both took the general way. Its own changes must still send what the frame says.
        check_changes(data, general)
        return "general"
    assert described(typed) == described(general), data
    ours, theirs = encodings(typed), encodings(general)
    for change, sent in ours.items():
        expected = theirs[change]
        if isinstance(sent, bytes) and isinstance(expected, bytes):
            assert sent == expected or meaning_of(sent) == meaning_of(expected), (change, data)
        else:
            assert sent == expected, (change, data)
    check_changes(data, typed)
    return "typed"


def check_changes(data: bytes, frame: Frame) -> None:
    """Check that another id changes nothing else of what is sent."""
    sent = jsonrpc.encode_frame(jsonrpc.with_id(frame, 7))
    plain = Frame("2.0", 7, frame.method, frame.params, frame.result, frame.error)
    if type(frame) is Frame and sent != jsonrpc.encode_frame(plain):
        assert meaning_of(sent) == meaning_of(jsonrpc.encode_frame(plain)), data
    assert b"\n" not in sent, data
    assert b"\r" not in sent, data


def test_the_typed_decoding_of_a_tool_call_equals_the_general_one() -> None:
    writer, ways = FrameWriter(20260728), Counter[str]()
    for number in range(FRAMES // BATCH):
        batch = [writer.frame() for _ in range(BATCH)]
        limits = LIMITS if number % 2 else FROM_CLIENTS
        typed = decode_all(batch, limits)
        with patch.object(jsonrpc, "_tool_call_in", find_no_tool_call):
            general = decode_all(batch, limits)
        ways.update(map(compare, batch, typed, general))
    # A generator that loses one of its kinds proves nothing.
    assert min(ways.values()) > FRAMES // 10, ways
    assert len(ways) == 3


@loop_over(
    "rest", ['"method":"ping"', '"method":"tools/list","params":{}', '"result":{}', '"error":{}']
)
def test_another_id_changes_nothing_else_of_a_frame(rest: str) -> None:
    for id in ("1", "-7", '","', '"a,"', '",,"', '"\\","', '",\\""', '"é,"', '""', '"\\\\"'):
        for other in (7, ",", 'a"b,', "é"):
            frame = jsonrpc.decode_frame(f'{{"jsonrpc":"2.0","id":{id},{rest}}}'.encode())
            expected = f'{{"jsonrpc":"2.0","id":{json.dumps(other)},{rest}}}'.encode()
            sent = jsonrpc.encode_frame(jsonrpc.with_id(frame, other))
            assert meaning_of(sent) == meaning_of(expected)
            back = jsonrpc.with_id(jsonrpc.with_id(frame, other), 1)
            assert jsonrpc.encode_frame(back) == f'{{"jsonrpc":"2.0","id":1,{rest}}}'.encode()
