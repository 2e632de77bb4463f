"""The kinds of text that the calls of a bench carry. Each kind costs a relay something else.

The lengths vary a little from call to call, so that no relay can rely on one length.
"""

from typing import Final, Literal, get_args

type Body = Literal["plain", "newline", "utf8", "escaped", "progress", "2kb", "20kb"]

PLAIN: Final[Body] = "plain"
BODIES: Final[tuple[Body, ...]] = get_args(Body.__value__)
VARIANTS: Final = 8

_SENTENCE: Final = (
    b"The report of this week lists the work that is done and the work that is left. "
)
_ENDINGS: Final[dict[Body, bytes]] = {
    "newline": rb"\nThe user said \"go on\".\n",
    "utf8": " Größe, naïve café, 日本".encode(),
    "escaped": rb" Gr\u00f6\u00dfe, na\u00efve caf\u00e9, \u65e5\u672c",
}
_LENGTHS: Final[dict[Body, int]] = {"2kb": 2_000, "20kb": 20_000}


def text_of(body: Body, number: int, variant: int) -> bytes:
    """The JSON string of the call with this number. Variants differ in length."""
    text = b"call %d, please" % number + _ENDINGS.get(body, b"")
    if length := _LENGTHS.get(body):
        text += b" " + (_SENTENCE * (length // len(_SENTENCE) + 1))[:length]
    return b'"%b%b"' % (text, b" now" * variant * (1 + len(text) // 500))
