"""The index of words, the index of names and the masks of visible tools."""

from hypothesis import given
from hypothesis import strategies as st

from comity.catalog.search import index
from comity.catalog.search.index import (
    MAX_EXAMINED_NAMES,
    MAX_SIMILAR_WORDS,
    NameIndex,
    WordIndex,
    distance_between,
)
from tests.support.cases import loop_over

WORDS = st.sampled_from(["search", "searching", "file", "files", "mail", "male", "weather"])
IMPACTS = st.dictionaries(WORDS, st.integers(1, 40_000), max_size=5)


def shelves(word_index: WordIndex) -> dict[str, list[tuple[int, int]]]:
    words = ["search", "searching", "file", "files", "mail", "male", "weather"]
    found = {word: word_index.find_posting(word) for word in words}
    return {
        word: list(zip(posting.slots, posting.impacts, strict=True))
        for word, posting in found.items()
        if posting is not None
    }


@given(st.lists(st.tuples(st.integers(0, 9), st.none() | IMPACTS), max_size=40))
def test_after_any_changes_it_holds_what_a_new_one_would(
    changes: list[tuple[int, dict[str, int] | None]],
) -> None:
    word_index, kept = WordIndex(), dict[int, dict[str, int]]()
    for slot, impacts in changes:
        word_index.remove(slot)
        kept.pop(slot, None)
        if impacts is not None:
            word_index.put(slot, impacts)
            kept[slot] = impacts
    fresh = WordIndex()
    for slot in sorted(kept):
        fresh.put(slot, kept[slot])
    assert shelves(word_index) == shelves(fresh)
    assert len(word_index) == len(kept)
    for word in ("serch", "fil", "wether"):
        assert [p.word for p, _ in word_index.find_similar(word)] == [
            p.word for p, _ in fresh.find_similar(word)
        ]


def test_a_posting_knows_what_a_word_weighs_in_each_tool() -> None:
    word_index = WordIndex()
    for slot in (5, 1, 3):
        word_index.put(slot, {"file": slot * 10})
    posting = word_index.find_posting("file")
    assert posting is not None
    assert [posting.impact_at(slot) for slot in range(7)] == [0, 10, 0, 30, 0, 50, 0]
    assert posting.max_impact == 50


@loop_over(
    ("typed", "meant", "distance"),
    [
        ("wea", "weather", 0),
        ("serach", "search", 1),
        ("seach", "search", 1),
        ("searchh", "search", 1),
        ("xearch", "search", 1),
        ("searcx", "search", 1),
        ("temperatrue", "temperature", 1),
        ("tempreatrue", "temperature", 2),
        ("ab", None, 0),
        ("zzzz", None, 0),
        ("un", None, 0),
        ("", None, 0),
        ("mial", None, 0),
    ],
)
def test_mistyped_word_finds_what_is_near_enough(
    typed: str, meant: str | None, distance: int
) -> None:
    word_index = WordIndex()
    for slot, word in enumerate(("search", "weather", "temperature", "unlike", "mile", "x")):
        word_index.put(slot, {word: 1})
    found = [(posting.word, off) for posting, off in word_index.find_similar(typed)]
    assert found == ([] if meant is None else [(meant, distance)])


def test_no_more_words_and_names_with_one_beginning_are_given_than_the_limit() -> None:
    word_index, name_index = WordIndex(), NameIndex()
    word_index.put(0, {f"file{number}": 1 for number in range(200)})
    assert len(list(word_index.find_similar("file"))) == MAX_SIMILAR_WORDS
    for slot in range(MAX_EXAMINED_NAMES + 50):
        name_index.put(slot, f"get{slot}")
    assert len(list(name_index.find_by_prefix("get"))) == MAX_EXAMINED_NAMES


@given(st.text("abc", max_size=6), st.text("abc", max_size=6), st.integers(1, 3))
def test_a_distance_is_the_same_both_ways_and_never_more_than_one_too_many(
    one: str, other: str, most: int
) -> None:
    found = distance_between(one, other, most)
    assert found == distance_between(other, one, most)
    assert abs(len(one) - len(other)) <= found or found == most + 1
    assert (found == 0) == (one == other)
    assert found <= most + 1


def name_index_of(*names: str) -> NameIndex:
    name_index = NameIndex()
    for slot, name in enumerate(names):
        name_index.put(slot, name, f"server__{name}")
    return name_index


def test_a_name_is_found_however_its_words_are_set_apart() -> None:
    name_index = name_index_of("read_file", "write_file")
    for text in ("read_file", "readFile", "READ-FILE", "read file", "server__read_file"):
        assert list(name_index.find_exact(text)) == [0]


def test_the_beginning_of_a_name_finds_those_that_go_on() -> None:
    name_index = name_index_of("read_file", "read_files", "list_files")
    assert sorted(name_index.find_by_prefix("read_fi")) == [0, 1]
    assert list(name_index.find_by_prefix("read_file")) == [1]


def test_too_little_and_too_much_finds_nothing() -> None:
    name_index = name_index_of("read_file", "")
    assert list(name_index.find_exact("")) == []
    assert list(name_index.find_exact("?!")) == []
    assert list(name_index.find_by_prefix("re")) == []
    assert list(name_index.find_by_prefix("read file of the long sentence")) == []


def test_a_name_that_two_servers_have_stays_while_one_has_it() -> None:
    name_index = name_index_of("search", "search")
    name_index.remove(0, "search", "server__search")
    assert list(name_index.find_exact("search")) == [1]
    name_index.remove(1, "search", "server__search")
    name_index.remove(1, "search", "server__search")
    assert list(name_index.find_exact("search")) == []
    assert list(name_index.find_by_prefix("sear")) == []


MASKS = st.lists(st.integers(0, 1), max_size=40).map(bytes)


@given(MASKS, MASKS)
def test_in_both_is_what_is_in_each(one: bytes, other: bytes) -> None:
    size = max(len(one), len(other))
    found = index.intersect_masks(one, other)
    padded = zip(one.ljust(size, b"\0"), other.ljust(size, b"\0"), strict=True)
    assert list(found) == [a & b for a, b in padded]
    assert index.count_visible(found) == sum(found)
