"""Words that servers add: where they stand, whose they are, and that nobody can say otherwise."""

import re

from hypothesis import given
from hypothesis import strategies as st

from comity.rules import injections
from comity.rules.injections import Given, fitting, permitted, placed, safe_label, tokens_of
from comity.wire.contents import Block, said, text_of
from comity.wire.hooks import Injection, Position

WORD = "0123456789abcdef"


def of(server: str, text: str, position: Position = Position.BEFORE_USER) -> Given:
    return Given(server, Injection("n", position, said(text)))


def test_nothing_is_added_where_nobody_adds_anything() -> None:
    assert placed([], WORD) == injections.Placed()


def test_each_stands_at_its_place_in_its_order_between_its_marks() -> None:
    found = placed(
        [
            of("a", "one"),
            of("b", "two", Position.SYSTEM),
            of("b", "three"),
            of("a", "four", Position.AFTER_USER),
        ],
        WORD,
    )
    assert text_of(found.before) == (
        f'<context-{WORD} server="a" from="n">\none\n</context-{WORD}>\n'
        f'<context-{WORD} server="b" from="n">\nthree\n</context-{WORD}>'
    )
    assert "two" in text_of(found.system)
    assert text_of(found.system).startswith(f"What stands between <context-{WORD} server=...>")
    assert "four" in text_of(found.after)


@given(st.text(st.sampled_from("</ \n>CcontextserverfineONTEXT-0189af=\"'_"), max_size=200))
def test_no_text_begins_or_ends_a_mark(text: str) -> None:
    found = text_of(placed([of("odd", text), of("fine", "x")], WORD).before)
    assert len(re.findall(r"<\s*/?\s*context", found, re.IGNORECASE)) == 4
    assert len(re.findall(r"</context", found)) == 2


@given(st.text(max_size=300))
def test_no_label_leaves_its_mark(text: str) -> None:
    label = safe_label(text)
    assert not set(label) & set("\"<>\n'=&")
    assert len(label) <= 128


def test_pictures_stay_and_addresses_are_only_named() -> None:
    content = (
        Block("image", data="QQ==", mime="image/png"),
        Block("image", uri="https://example.org/<context-1>"),
        Block("resource", uri="memory://1"),
    )
    found = placed([Given("a", Injection("n", Position.BEFORE_USER, content))], WORD).before
    assert found[1] == content[0]
    assert found[2].text == "[image: https://example.org/&lt;context-1>]"
    assert found[3].text == "[resource: memory://1]"


def test_what_stands_where_it_may_not_is_left_out_alone() -> None:
    every = [of("a", "x", each).injection for each in Position]
    kept, elsewhere = permitted(every, {Position.BEFORE_USER})
    assert [each.position for each in kept] == [Position.BEFORE_USER]
    assert set(elsewhere) == {Position.SYSTEM, Position.AFTER_USER}


def test_what_is_too_much_is_left_out_whole() -> None:
    small, large = of("a", "x"), of("b", "x" * 10_000)
    kept, left_out = fitting([large, small], 100)
    assert (kept, left_out) == ([small], [large])
    assert tokens_of(small.injection.content) < 10 < tokens_of(large.injection.content)
    assert tokens_of([Block("image", data="QQ==", mime="i/p")]) > 1000
