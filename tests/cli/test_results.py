"""What tools give back, printed for people."""

from typing import Any

import pytest

from comity.cli.results import show_result

type Result = dict[str, Any]


def text(said: str) -> Result:
    return {"type": "text", "text": said}


SHOWN: list[tuple[Result, str]] = [
    ({"content": [text("one\ntwo"), text("three")]}, "one\ntwo\nthree\n"),
    ({"content": [text('{"a": 1}')], "structuredContent": {"a": 1}}, '{"a": 1}\n'),
    ({"content": [text("A")], "structuredContent": {"a": 1}}, 'A\n{\n  "a": 1\n}\n'),
    ({"content": [text("A")], "structuredContent": {"result": "A"}}, "A\n"),
    ({"content": [text("7")], "structuredContent": {"result": 7}}, "7\n"),
    ({"content": [text("1"), text("2")], "structuredContent": {"result": [1, 2]}}, "1\n2\n"),
    ({"content": [text("a"), text("b")], "structuredContent": {"result": ["a", "b"]}}, "a\nb\n"),
    (
        {"content": [text("A")], "structuredContent": {"a": "A", "b": 1}},
        'A\n{\n  "a": "A",\n  "b": 1\n}\n',
    ),
    ({"content": [{"type": "text"}], "structuredContent": {}}, "\n{}\n"),
    ({"structuredContent": []}, "[]\n"),
    (
        {"content": [{"type": "image", "mimeType": "image/png", "data": "AAAA"}]},
        "[image: image/png, 3 bytes]\n",
    ),
    (
        {"content": [{"type": "resource_link", "name": "n", "uri": "file:///x"}]},
        "[resource: n file:///x]\n",
    ),
    ({"content": [{"type": "resource", "resource": {"text": "inside"}}]}, "inside\n"),
    ({"content": [{"type": "resource", "resource": {"uri": "u"}}]}, "[resource: u]\n"),
    ({"content": [text("\x1b[2J[bold]x[/bold]")]}, "[bold]x[/bold]\n"),
    ({"content": 5}, ""),
    ({"content": [5, {}]}, "[None: which cannot be shown here]\n" * 2),
    ({}, ""),
]


@pytest.mark.parametrize(("result", "printed"), SHOWN)
def test_every_kind_of_content_is_printed_without_harm(
    result: Result,
    printed: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    show_result(result)
    assert capsys.readouterr().out == printed
