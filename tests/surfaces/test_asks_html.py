"""How the page of an ask is drawn: a style that its own policy lets through, and text as text."""

import base64
import hashlib
import re

from comity.rules.ask_words import Row
from comity.surfaces import asks_html
from comity.surfaces.asks_html import HEADERS, Shown, page, told


def test_the_policy_names_the_very_style_of_the_page() -> None:
    policy = dict(HEADERS)[b"content-security-policy"].decode()
    (style,) = re.findall(r"<style>(.*?)</style>", page("x").decode(), re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert f"'sha256-{digest}'" in policy


def test_rows_are_text_and_code_keeps_its_lines() -> None:
    rows = [Row("Tool", "a<b"), Row("Arguments", '{\n  "x": "</pre>"\n}', is_code=True)]
    drawn = told(Shown("<i>", "<b>", rows))
    assert "a&lt;b" in drawn
    assert "{\n  &quot;x&quot;: &quot;&lt;/pre&gt;&quot;\n}" in drawn
    assert "<i>" not in drawn
    assert '<p class="risk ">&lt;b&gt;</p>' in drawn


def test_a_token_stands_in_the_form_and_nothing_breaks_out_of_it() -> None:
    form = asks_html.answer_form('x"><script>')
    assert "<script>" not in form
    assert form.count("<button") == 2
    assert 'method="post"' in form
