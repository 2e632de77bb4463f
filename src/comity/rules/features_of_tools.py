"""Which feature set a tool belongs to, for nothing in a call says so. (MCPL §6, D-65)

Rule 1: the set that the tool's own definition names in `_meta.featureSet`, where its server
        declares it for tools; else the only set that is for tools; else the server as a whole.
Rule 2: what a definition says is its server's word: it chooses among declared sets, and gives no
        right that the chosen one has not.
"""

from collections.abc import Mapping
from typing import Final

from comity.wire import jsonrpc
from comity.wire.errors import MalformedMessage
from comity.wire.features import FeatureSet, Use

KEY: Final = "featureSet"
WHOLE: Final = ""
"""The server as a whole: no feature set has this name."""


def feature_of_tool(definition: bytes | None, sets: Mapping[str, FeatureSet]) -> str:
    """The set of a tool with this definition (None where it was never listed), or `WHOLE`."""
    named = named_in(definition)
    if named in sets and Use.TOOLS in sets[named].uses:
        return named
    for_tools = [name for name, each in sets.items() if Use.TOOLS in each.uses]
    return for_tools[0] if len(for_tools) == 1 else WHOLE


def named_in(definition: bytes | None) -> str:
    """The set that a definition names, declared or not."""
    try:
        # Most definitions name none, and reading one costs more than looking.
        if definition is None or KEY.encode() not in definition:
            return WHOLE
        meta = jsonrpc.members(definition).get("_meta")
        return jsonrpc.text(jsonrpc.members(meta).get(KEY)) or WHOLE if meta is not None else WHOLE
    except MalformedMessage:
        return WHOLE
