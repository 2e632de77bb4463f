"""What may stand in no file of the project: a path of some machine, the host of an index."""

import re
from pathlib import Path

from tests.architecture.sources import ROOT, tracked_files
from tests.support.cases import loop_over

# A home that is nobody's ("/home/user/…", as in the documents' own examples) tells nothing.
MACHINE_PATH = re.compile(r"(?<![\w.$}>-])/(?:root|work|workspace|Users/\w+|home/(?!user/)\w+)/")
INDEX_HOST = re.compile(r"pypi\.(?:org|python)|pythonhosted\.org|registry\.(?:npmjs|yarnpkg)")


def _texts() -> list[tuple[str, str]]:
    raw = ((path.relative_to(ROOT).as_posix(), path.read_bytes()) for path in tracked_files())
    return [(name, data.decode("utf-8")) for name, data in raw if b"\0" not in data]


@loop_over("pattern", [MACHINE_PATH, INDEX_HOST], ids=["path", "index"])
def test_no_file_tells_where_it_was_made(pattern: re.Pattern[str]) -> None:
    assert [
        (name, found.group()) for name, text in _texts() if (found := pattern.search(text))
    ] == []


def test_no_file_names_this_checkout() -> None:
    # A place of one part ("/app") is a word that may well stand in a text by chance.
    places = [re.escape(str(place)) for place in (ROOT, Path.home()) if len(place.parts) > 2]
    here = re.compile(rf"(?<![\w.-])(?:{'|'.join(places) or '(?!)'})(?![\w-])")
    assert [name for name, text in _texts() if here.search(text)] == []


@loop_over(
    ("text", "tells"),
    [
        ("cd /" + "work/main", True),
        ("/" + "root/.cache", True),
        ("file:///" + "home/ann/x", True),
        ("file:///home/user/x", False),
        ("docs/work/plan", False),
        ("https://example.org/work/", False),
    ],
)
def test_a_path_of_a_machine_is_told_from_other_paths(text: str, tells: bool) -> None:
    assert bool(MACHINE_PATH.search(text)) == tells
