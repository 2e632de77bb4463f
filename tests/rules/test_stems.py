"""Stems: forms of one word become one, as the Snowball project's own vocabulary has it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comity.rules.stems import stem

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


@pytest.mark.parametrize("pair", PAIRS.replace("\n", " ").split(";"))
def test_a_word_has_the_stem_that_the_algorithm_gives_it(pair: str) -> None:
    word, expected = pair.split()
    assert stem(word) == expected


@pytest.mark.parametrize("word", ["", "a", "io", "größe", "поиск"])
def test_what_is_short_or_of_another_script_stays_as_it_is(word: str) -> None:
    assert stem(word) == word


@given(st.text("abcdeilnsty", max_size=12))
def test_a_stem_is_never_empty_and_hardly_longer_than_its_word(word: str) -> None:
    found = stem(word)
    assert len(found) <= len(word) + 1
    assert bool(found) == bool(word)
