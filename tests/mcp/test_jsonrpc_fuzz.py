"""Whatever bytes arrive, the decoder gives a frame or says MalformedMessage, and nothing else.

`COMITY_FUZZ_SECONDS` is how long to try (10), `COMITY_FUZZ_SEED` repeats a run that failed.
"""

import contextlib
import os
import random
import secrets
import time
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from comity.errors import MalformedMessage
from comity.mcp import jsonrpc
from comity.mcp.conversation import Conversation
from comity.mcp.jsonrpc import Frame, FrameLimits
from comity.mcp.protocol import LISTEN, STANDALONE, UNKNOWN
from tests.mcp import json_texts
from tests.mcp.json_texts import Written, read_loosely, unhurried

SECONDS = float(os.environ.get("COMITY_FUZZ_SECONDS", "10"))
SEED = int(os.environ.get("COMITY_FUZZ_SEED", secrets.randbits(32)))
TIGHT = FrameLimits(
    frame_bytes=600, depth=6, string_bytes=40, id_characters=8, method_characters=30
)

CORPUS = (
    (
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","arguments":{"x":[1]},'
        b'"_meta":{"progressToken":"t"}}}'
    ),
    b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":5}}',
    b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"a","reason":"r"}}',
    (
        b'{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":{"_meta":'
        b'{"io.modelcontextprotocol/subscriptionId":1}}}'
    ),
    (
        b'{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"\\u00e9\xc3\xa9"}],'
        b'"_meta":{"io.modelcontextprotocol/subscriptionId":1}}}'
    ),
    b'{"jsonrpc":"2.0","id":2,"error":{"code":-32601,"message":"no","data":{"n":1e3}}}',
    b'{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"?"}}',
    b'{ "jsonrpc" : "2.0",\r\n "id" : "\\ud83d\\ude00", "method" : "m", "trace_id" : [ { } ] }',
)
PIECES = (
    *(
        b"{",
        b"}",
        b"[",
        b"]",
        b'"',
        b"\\",
        b",",
        b":",
        b"\n",
        b"\r",
        b" ",
        b"\x00",
        b"\xff",
        b"\xc3",
    ),
    *(b'"id":1,', b'"id":1.0,', b'"ID":1,', b'"method":"m",', b'"\\u0069d":2,', b'"x":1,"x":2,'),
    *(b"NaN", b"-0", b"1e400", b"9" * 400, b"true", b"null", b"\\ud800", b"\\udc00", b"\\u0000"),
    *(
        b'{"a":1,"a":2}',
        b"[[[[[[[[",
        b"]]]]]]]]",
        b"\xef\xbb\xbf",
        b"\xed\xa0\x80",
        b"\xe2\x80\xa8",
    ),
)


def insert_piece(data: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(data) + 1)
    return data[:at] + chance.choice(PIECES) + data[at:]


def flip_byte(data: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(data) + 1)
    return data[:at] + bytes([chance.randrange(256)]) + data[at + 1 :]


def cut_span(data: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(data) + 1)
    return data[:at] + data[at + chance.randrange(12) :]


def repeat_span(data: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(data) + 1)
    span = data[at : at + chance.randrange(40)]
    return data[:at] + span + data[at:]


def splice_other(data: bytes, chance: random.Random) -> bytes:
    other = chance.choice(CORPUS)
    return data[: chance.randrange(len(data) + 1)] + other[chance.randrange(len(other)) :]


def only_noise(_: bytes, chance: random.Random) -> bytes:
    return chance.randbytes(chance.randrange(60))


MUTATIONS: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    *(insert_piece, insert_piece, insert_piece, flip_byte, flip_byte, cut_span, cut_span),
    *(repeat_span, repeat_span, splice_other),
)


def mutants(seed: int) -> Iterator[bytes]:
    """Frames that were valid once, each changed in one to four places; now and then, noise."""
    chance = random.Random(seed)  # noqa: S311  # what is drawn here guards nothing
    while True:
        data = chance.choice(CORPUS)
        for _ in range(chance.choice((1, 1, 1, 2, 3, 4))):
            data = chance.choice(MUTATIONS)(data, chance)
        yield data if chance.random() > 0.02 else only_noise(data, chance)


def raws_of(frame: Frame) -> list[Raw]:
    return [raw for raw in (frame.params, frame.result, frame.error) if isinstance(raw, Raw)]


def read_everything(frame: Frame) -> None:
    """What the gateway may do with a stranger's frame; only MalformedMessage may come of it."""
    jsonrpc.error_of(frame)
    reads: list[Callable[[Raw], object]] = [
        jsonrpc.decode_members,
        jsonrpc.decode_value,
        jsonrpc.decode_text,
    ]
    for read in reads:
        for raw in raws_of(frame):
            with contextlib.suppress(MalformedMessage):
                read(raw)
    for stream in (UNKNOWN, STANDALONE, 1, 2):
        listening = Conversation[str]()
        listening.register_request(jsonrpc.make_request("asker", LISTEN), "listener")
        with contextlib.suppress(MalformedMessage):
            listening.classify(frame, stream)


def judge(data: bytes) -> bool:
    """Whether the bytes were a frame; if so, everything that is promised of one holds."""
    for limits in (TIGHT, jsonrpc.LIMITS):
        try:
            frame = jsonrpc.decode_frame(data, limits)
        except MalformedMessage:
            continue
        encoded = jsonrpc.encode_frame(frame)
        assert len(encoded) <= len(data)
        assert b"\n" not in encoded
        assert b"\r" not in encoded
        assert jsonrpc.encode_frame(jsonrpc.decode_frame(encoded, limits)) == encoded
        if b"-0" not in data:
            assert read_loosely(encoded) == read_loosely(data)
        read_everything(frame)
        return True
    return False


@pytest.mark.timeout(SECONDS + 60)
def test_no_mutant_of_a_valid_frame_breaks_the_decoder() -> None:
    end = time.monotonic() + SECONDS
    verdicts = {True: 0, False: 0}
    for data in mutants(SEED):
        try:
            verdicts[judge(data)] += 1
        except Exception as error:
            error.add_note(f"COMITY_FUZZ_SEED={SEED}, after {sum(verdicts.values())}: {data!r}")
            raise
        if time.monotonic() > end and all(verdicts.values()):
            break


@unhurried
@given(st.binary(max_size=80))
def test_no_random_bytes_break_the_decoder(data: bytes) -> None:
    judge(data)
    judge(b'{"jsonrpc":"2.0","method":"m","params":' + data + b"}")
    judge(b'{"jsonrpc":"2.0","method":"' + data + b'"}')


@unhurried
@given(json_texts.frames())
def test_no_oddly_written_frame_breaks_the_decoder(written: Written) -> None:
    judge(written.data)


def test_the_mutants_are_not_all_broken_in_the_same_way() -> None:
    """A fuzz in which nothing, or everything, is a frame proves little."""
    tried = [judge(data) for data, _ in zip(mutants(1), range(2000), strict=False)]
    assert 100 < sum(tried) < 1900
