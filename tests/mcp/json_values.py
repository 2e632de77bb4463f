"""What strangers may say, for the properties of the rules: JSON of any shape, and frames of it."""

from typing import cast

import msgspec
from hypothesis import strategies as st

from comity.mcp import jsonrpc
from comity.mcp.jsonrpc import UNSET, Frame

_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
)

json_values: st.SearchStrategy[object] = st.recursive(
    _SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)

type Object = dict[str, object]


def objects(*spared: str) -> st.SearchStrategy[Object]:
    """Objects without certain members."""
    names = st.text(max_size=8).filter(lambda name: name not in spared)
    return st.dictionaries(names, json_values, max_size=4)


def odd(*names: str) -> st.SearchStrategy[Object]:
    """Objects in which anything at all stands under the names that matter."""
    return st.dictionaries(st.sampled_from(names), json_values)


def as_object(value: object) -> Object:
    """What a stranger said, where it is an object at all."""
    return cast("Object", value) if isinstance(value, dict) else {}


def params_in(frame: Frame) -> Object:
    return {} if frame.params is UNSET else msgspec.json.decode(frame.params, type=Object)


def result_in(frame: Frame) -> Object:
    assert frame.result is not UNSET
    return msgspec.json.decode(frame.result, type=Object)


def raw(value: object) -> msgspec.Raw:
    return jsonrpc.to_raw(value)


def raws(values: Object) -> dict[str, msgspec.Raw]:
    return {name: raw(value) for name, value in values.items()}
