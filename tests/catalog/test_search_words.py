"""The words of names and texts: stems, sentences, weights, and the facts in a definition."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from comity.catalog.search.words import (
    MAX_CATEGORIES,
    MAX_IMPACT,
    MAX_KEYWORDS,
    MAX_PARAMETERS,
    MAX_SENTENCES,
    MAX_TERMS,
    SearchField,
    category_and_parents,
    category_of,
    compact_name,
    extract_facts,
    field_texts,
    split_sentences,
    stem_word,
    stem_words,
    word_impacts,
)
from tests.support.cases import loop_over


@loop_over(
    ("text", "expected"),
    [
        *(
            (name, ["read", "file"])
            for name in ("readFile", "read_file", "read-file", "READ FILE", "Read.File")
        ),
        ("HTTPServer", ["http", "server"]),
        ("parseMP3s", ["pars", "mp3", "s"]),
        ("the state of a file", ["state", "file"]),
        ("Café résumé", ["cafe", "resum"]),
        ("поиск файлов", ["поиск", "фаилов"]),
        ("搜索网页", ["搜索", "索网", "网页"]),
        ("天", ["天"]),
        ("파일 읽기", ["파일", "읽기"]),
        ("2 + 2", ["2", "2"]),
        ("😀 \ud800", []),
        ("", []),
    ],
)
def test_name_or_text_of_any_script_has_words(text: str, expected: list[str]) -> None:
    assert stem_words(text) == expected


@given(st.text())
def test_no_text_breaks_it(text: str) -> None:
    assert all(stem_words(text))
    assert compact_name(text) == compact_name(compact_name(text)) or not text.isascii()


def test_field_and_number_of_fields_decide_what_a_word_weighs() -> None:
    fields = [
        (SearchField.NAME, "weather rain"),
        (SearchField.DESCRIPTION, "rain sun"),
        (SearchField.PARAMETERS, "city"),
    ]
    found = word_impacts(fields)
    assert found["rain"] > found["weather"] > found["sun"] > found["citi"] > 0


def test_a_word_that_is_repeated_a_thousand_times_gains_nothing_by_it() -> None:
    honest = word_impacts([(SearchField.DESCRIPTION, "send a mail to somebody")])["mail"]
    stuffed = word_impacts([(SearchField.DESCRIPTION, "mail " * 1_000)])["mail"]
    assert stuffed < honest


def test_only_the_weightiest_words_of_a_long_text_count() -> None:
    for count in (400, 100_000):
        parameters = " ".join(f"p{number:03}" for number in range(count))
        found = word_impacts(
            [(SearchField.PARAMETERS, parameters), (SearchField.NAME, "send_mail")]
        )
        assert len(found) <= MAX_TERMS
        assert {"send", "mail"} <= found.keys()
        assert all(0 < impact <= MAX_IMPACT < 65_536 for impact in found.values())


PAIRS = """
consign consign; consigned consign; consignment consign; consisted consist; consistency consist;
knightly knight; knives knive; knots knot; caresses caress; ties tie; cries cri; gas gas; gaps gap;
kiwis kiwi; this this; agreed agre; feed feed; luxuriated luxuri; hopped hop; hoping hope; hop hop;
by by; say say; cry cri; relational relat; conditional condit; rational ration; valenci valenc;
analogousli analog; operator oper; feudalism feudal; decisiveness decis; hopefulness hope;
sensibiliti sensibl; formaliti formal; sensitiviti sensit; apology apolog; carelessly careless;
friendly friend; electricity electr; electrical electr; goodness good; formative format;
irritant irrit; adoption adopt; adjustment adjust; probate probat; rate rate; cease ceas;
controll control; roll roll; skies sky; dying die; news news; generate generat; communism communism;
boyish boyish; yearly year; youth youth; at at; exceedingly exceed; proceed proceed; usefully use;
digitizer digit; vietnamization vietnam; radicalli radic; possibly possibl; gently gentl; bled bled;
agreedly agre; sing sing; bias bias; calmness calm; queries queri; repli repli
"""


@loop_over("pair", PAIRS.replace("\n", " ").split(";"))
def test_a_word_has_the_stem_that_the_algorithm_gives_it(pair: str) -> None:
    word, expected = pair.split()
    assert stem_word(word) == expected


@loop_over("word", ["", "a", "io", "größe", "поиск"])
def test_what_is_short_or_of_another_script_stays_as_it_is(word: str) -> None:
    assert stem_word(word) == word


@given(st.text("abcdeilnsty", max_size=12))
def test_a_stem_is_never_empty_and_hardly_longer_than_its_word(word: str) -> None:
    found = stem_word(word)
    assert len(found) <= len(word) + 1
    assert bool(found) == bool(word)


@loop_over(
    ("text", "found"),
    [
        ("", []),
        ("read a file", []),
        (
            "Read that file. Then mail it to the team!",
            ["Read that file.", "Then mail it to the team!"],
        ),
        ("Thank you. Read that file.", []),
        ("version 1.2.3 of the package", []),
        ("what is the weather\nbook a fast train", ["what is the weather", "book a fast train"]),
        ("查询明天的天气。预订一张火车票。", ["查询明天的天气。", "预订一张火车票。"]),
    ],
)
def test_each_sentence_that_says_something_stands_by_itself(text: str, found: list[str]) -> None:
    assert split_sentences(text) == found


@given(st.text(max_size=300) | st.just("do one thing more. " * 50))
def test_sentences_are_few_and_parts_of_the_text(text: str) -> None:
    found = split_sentences(text)
    assert len(found) != 1
    assert len(found) <= MAX_SENTENCES
    assert all(each in text for each in found)


def facts(name: str = "tool", **definition: Any) -> Any:
    return extract_facts(name, json.dumps(definition).encode())


def test_a_definition_is_read_by_its_fields() -> None:
    found = facts(
        "read_file",
        title="Read",
        description="Read a file.",
        inputSchema={"properties": {"path": {"description": "where it is"}, "odd": 3}},
    )
    assert found.title == "Read"
    assert found.description == "Read a file."
    assert found.parameters == (("path", "where it is"), ("odd", ""))
    assert found.categories == ("filesystem/read",)
    texts = dict(field_texts("read_file", found, "Files", "All files of this machine"))
    assert texts[SearchField.NAME] == "read_file"
    assert texts[SearchField.PARAMETERS] == "path odd"
    assert texts[SearchField.SERVER_TITLE] == "Files"


@loop_over(
    ("name", "definition", "category"),
    [
        ("delete_event", b"{}", "calendar/delete"),
        ("search", b'{"description": "Search the web for pages"}', "web/search"),
        ("search", b"{}", "other/search"),
        ("frobnicate", b"{}", "other"),
        ("get_weather", b'{"description": "Give the forecast."}', "weather/read"),
        *(("send_mail", odd, "mail/send") for odd in (b"", b"{", b"[]", b"\xff")),
        ("send_mail", b'{"description": 5}', "mail/send"),
    ],
)
def test_category_is_guessed_from_words(name: str, definition: bytes, category: str) -> None:
    assert extract_facts(name, definition).categories == (category,)


def test_declared_category_comes_before_permissions_and_guesses() -> None:
    needs = {"permissions_required": ["filesystem.read", "network.outbound", 3]}
    meta = {
        "dev.comity/category": "Office / Papers",
        "dev.comity/tags": ["a", " b  c "],
        "dev.comity/keywords": ["a", "", 1],
    }
    # SDKs leave permissions in either place.
    for found in (
        facts("read_file", annotations={"title": "Read"}, _meta=meta, security=needs),
        facts("read_file", title="Read", _meta={**meta, "dev.comity/security": needs}),
    ):
        assert found.categories == ("office/papers", "filesystem/read", "network/outbound")
        assert found.keywords == ("a", "b c")
        assert found.title == "Read"


def test_a_category_lies_in_those_that_hold_it() -> None:
    assert list(category_and_parents("a/b/c")) == ["a/b/c", "a/b", "a"]
    assert category_of("Web > Search::Deep/er/too deep") == "web/search/deep/er"
    assert category_of(" / ") == ""


def test_a_server_that_writes_without_end_is_cut_short() -> None:
    parameters = {f"p{n}" * 50: {"description": "w " * 9_999} for n in range(200)}
    found = facts(
        "x" * 10_000,
        title="t" * 10_000,
        description="d " * 500_000,
        inputSchema={"properties": parameters},
        _meta={
            "dev.comity/tags": [f"tag {n}" for n in range(1_000)],
            "dev.comity/category": [f"c{n}/" * 50 for n in range(1_000)],
        },
    )
    assert len(found.parameters) == MAX_PARAMETERS
    assert len(found.keywords) == MAX_KEYWORDS
    assert len(found.categories) == MAX_CATEGORIES
    size = sum(len(text) for _, text in field_texts("x", found, "", ""))
    assert size < 40_000


MEMBERS = st.text() | st.sampled_from(
    (
        *("name", "description", "inputSchema", "properties", "_meta", "security", "annotations"),
        *("dev.comity/category", "dev.comity/tags", "permissions_required"),
    )
)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(MEMBERS, inner),
    max_leaves=30,
)


@given(ANYTHING)
def test_no_definition_breaks_it(definition: object) -> None:
    found = extract_facts("any_name", json.dumps(definition).encode())
    assert found.categories
    list(field_texts("any_name", found, "", ""))
