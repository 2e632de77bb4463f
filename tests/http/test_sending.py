"""Whatever happens to a request, its reader is told of one ending and then let go."""

import weakref

from comity.errors import Unavailable
from tests.http.talk import Notes, Talk
from tests.support.cases import loop_over


@loop_over("first", ["end", "fail", "abort"])
@loop_over("second", ["end", "fail", "abort"])
def test_only_the_first_ending_is_told(first: str, second: str) -> None:
    talk = Talk()
    endings = {
        "end": talk.sending.end,
        "fail": lambda: talk.sending.fail(Unavailable("gone")),
        "abort": talk.sending.abort,
    }
    endings[first]()
    endings[second]()
    assert talk.notes.endings == {"end": ["ended"], "fail": ["failed"], "abort": []}[first]


def test_a_reader_is_let_go_with_the_ending_even_if_its_request_is_kept() -> None:
    talk = Talk(Notes())
    trace = weakref.ref(talk.notes)
    talk.sending.end()
    del talk.notes
    assert trace() is None
