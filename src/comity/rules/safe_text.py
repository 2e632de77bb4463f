"""Text that a database takes and a terminal shows as it is, whoever wrote it.

NUL and halves of characters are refused by databases; control characters move a terminal's cursor;
what turns the direction of writing, or is not seen at all, shows a reader something else than what
stands there. Each is spelled out. Line breaks and tabs stay: whoever prints lines takes care.
"""

import re
from typing import Final

_UNSAFE: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff"
    "\ufff9-\ufffb\ufffe\uffff\ud800-\udfff\U000e0000-\U000e007f]"
)


def safe(text: str) -> str:
    """The same text, with what is unsafe spelled out as Python would."""
    if text.isprintable():  # true of nearly everything, and much quicker than looking
        return text
    return _UNSAFE.sub(_spelled_out, text)


def _spelled_out(found: re.Match[str]) -> str:
    return ascii(found[0])[1:-1]
