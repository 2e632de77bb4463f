"""The map of buckets against a dictionary, and what a change of it copies."""

from hypothesis import given
from hypothesis import strategies as st

from comity.toolkit.bucket_map import BUCKETS, BucketMap

KEYS = st.integers(0, 30).map(str)


@given(
    first=st.dictionaries(KEYS, st.integers()),
    changes=st.lists(st.dictionaries(KEYS, st.none() | st.integers()), max_size=8),
)
def test_it_is_a_dictionary_of_which_every_version_stays(
    first: dict[str, int], changes: list[dict[str, int | None]]
) -> None:
    versions = [(BucketMap(first), first)]
    for change in changes:
        current, expected = versions[-1]
        expected = {k: v for k, v in (expected | change).items() if v is not None}
        versions.append((current.changed(change), expected))
    for current, expected in versions:
        assert current == expected
        assert len(current) == len(expected)
        assert sorted(current) == sorted(expected)
        for key in map(str, range(31)):
            assert current.get(key, -1) == expected.get(key, -1)
            assert (key in current) == (key in expected)


def test_a_change_of_one_key_copies_one_bucket() -> None:
    before = BucketMap({f"agent:{number}": number for number in range(100_000)})
    after = before.changed({"agent:7": -7, "agent:8": None})
    copied = [n for o, n in zip(before.buckets, after.buckets, strict=True) if o is not n]
    assert 1 <= len(copied) <= 2
    assert max(map(len, copied)) < 3 * 100_000 // BUCKETS
    assert (before["agent:7"], after["agent:7"], len(after)) == (7, -7, 99_999)
