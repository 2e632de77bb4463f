"""What a node and a cluster may be called."""

import re
from typing import Final

from comity.config.kinds import Kind
from comity.rules.documents import Written

NAME_RULE: Final = "must be 1 to 32 of the characters A-Z a-z 0-9 _ -"
_NAME: Final = r"^[A-Za-z0-9_-]{0,32}$"


def _read_name(written: Written) -> str:
    if not re.search(_NAME, written.text()):
        raise written.wrong(NAME_RULE)
    return written.text()


NODE_NAME: Final = Kind(_read_name, {"type": "string", "pattern": _NAME})
