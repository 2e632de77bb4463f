"""Tools found by their very names."""

from comity.rules.search_names import MOST_LOOKED_AT, NameIndex


def index_of(*names: str) -> NameIndex:
    index = NameIndex()
    for slot, name in enumerate(names):
        index.put(slot, name, f"server__{name}")
    return index


def test_a_name_is_found_however_its_words_are_set_apart() -> None:
    index = index_of("read_file", "write_file")
    for text in ("read_file", "readFile", "READ-FILE", "read file", "server__read_file"):
        assert list(index.exact(text)) == [0]


def test_the_beginning_of_a_name_finds_those_that_go_on() -> None:
    index = index_of("read_file", "read_files", "list_files")
    assert sorted(index.beginning("read_fi")) == [0, 1]
    assert list(index.beginning("read_file")) == [1]


def test_too_little_and_too_much_finds_nothing() -> None:
    index = index_of("read_file", "")
    assert list(index.exact("")) == []
    assert list(index.exact("?!")) == []
    assert list(index.beginning("re")) == []
    assert list(index.beginning("read file of the long sentence")) == []


def test_a_name_that_two_servers_have_stays_while_one_has_it() -> None:
    index = index_of("search", "search")
    index.drop(0, "search", "server__search")
    assert list(index.exact("search")) == [1]
    index.drop(1, "search", "server__search")
    index.drop(1, "search", "server__search")
    assert list(index.exact("search")) == []
    assert list(index.beginning("sear")) == []


def test_of_many_names_that_begin_alike_only_so_many_are_looked_at() -> None:
    index = NameIndex()
    for slot in range(MOST_LOOKED_AT + 50):
        index.put(slot, f"get{slot}")
    assert len(list(index.beginning("get"))) == MOST_LOOKED_AT
