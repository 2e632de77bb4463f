"""An order arrives at the guard as it was given, or cannot be given at all."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comity.adapters.upstream import orders

words = st.binary().filter(lambda word: b"\0" not in word)
names = words.filter(lambda word: word != b"" and b"=" not in word)


@given(argv=st.lists(words, min_size=1), env=st.dictionaries(names, words), cwd=words)
def test_an_order_is_read_as_it_was_written(
    argv: list[bytes], env: dict[bytes, bytes], cwd: bytes
) -> None:
    packed = orders.pack(argv, env, cwd)
    assert orders.length_of(packed) == len(packed) - 4
    order = orders.unpack(packed[4:])
    assert (order.argv, order.env, order.cwd) == (argv, env, cwd)


@pytest.mark.parametrize(
    ("argv", "env", "cwd"),
    [
        ([], {}, b"/"),
        ([b"a\0b"], {}, b"/"),
        ([b"a"], {b"": b"x"}, b"/"),
        ([b"a"], {b"a=b": b"x"}, b"/"),
        ([b"a"], {b"a": b"x\0"}, b"/"),
        ([b"a"], {}, b"/\0"),
    ],
)
def test_what_no_system_could_run_is_refused(
    argv: list[bytes], env: dict[bytes, bytes], cwd: bytes
) -> None:
    with pytest.raises(ValueError, match=r"no program|NUL"):
        orders.pack(argv, env, cwd)
