"""Which form a state is kept in, what is dropped, and what becomes whole for it."""

from datetime import UTC, datetime, timedelta

import pytest

from comity.rules.states import (
    LONGEST_LINE,
    Retention,
    form_of,
    line_to,
    outdated,
    resting_on,
)
from comity.wire.state_trees import Form, Node, Tree

NOW = datetime(2026, 7, 28, tzinfo=UTC)
DAY = timedelta(days=1)
BASE = Node(1, "chk_1", NOW, form=Form.DATA)


def a_line(length: int, head: int | None = None) -> Tree:
    """Patches one after the other, a day between them, the last one now."""
    nodes = {
        number: Node(
            number,
            f"chk_{number}",
            NOW - (length - number) * DAY,
            f"chk_{number - 1}",
            number - 1 or None,
            Form.PATCH if number > 1 else Form.DATA,
        )
        for number in range(1, length + 1)
    }
    return Tree(length, length if head is None else head, nodes)


def test_a_state_that_is_not_known_is_opaque() -> None:
    assert form_of(None, b"[]", BASE) == (Form.OPAQUE, 0)
    assert form_of(None, None, None) == (Form.OPAQUE, 0)


def test_a_patch_is_kept_where_it_is_shorter_than_what_it_makes() -> None:
    assert form_of(b'{"notes":[]}', b"[]", BASE) == (Form.PATCH, 1)
    assert form_of(b"{}", b"[]", BASE) == (Form.DATA, 0)
    assert form_of(b'{"notes":[]}', b"[]", None) == (Form.DATA, 0)
    assert form_of(b'{"notes":[]}', None, BASE) == (Form.DATA, 0)


def test_a_line_of_patches_ends_in_data() -> None:
    last = Node(2, "chk_2", NOW, form=Form.PATCH, line=LONGEST_LINE - 1)
    assert form_of(b'{"notes":[]}', b"[]", last) == (Form.PATCH, LONGEST_LINE)
    longest = Node(3, "chk_3", NOW, form=Form.PATCH, line=LONGEST_LINE)
    assert form_of(b'{"notes":[]}', b"[]", longest) == (Form.DATA, 0)


def test_more_than_may_be_kept_goes_the_oldest_first() -> None:
    assert outdated(a_line(4), Retention(4), NOW) == frozenset()
    assert outdated(a_line(7), Retention(4), NOW) == {1, 2, 3}


def test_a_few_too_many_stay_for_a_while() -> None:
    assert outdated(a_line(18), Retention(16), NOW) == frozenset()
    assert outdated(a_line(19), Retention(16), NOW) == {1, 2, 3}


def test_what_is_older_than_it_may_be_goes() -> None:
    assert outdated(a_line(5), Retention(100, 2 * DAY), NOW) == {1, 2}
    assert outdated(a_line(5), Retention(100, None), NOW) == frozenset()


@pytest.mark.parametrize("head", [1, 2, 7])
def test_what_counts_is_never_dropped(head: int) -> None:
    for retention in (Retention(1), Retention(100, timedelta()), Retention(2, DAY)):
        dropped = outdated(a_line(7, head), retention, NOW + DAY)
        assert head not in dropped
        assert len(dropped) >= 5


def test_what_rests_on_what_goes_is_found() -> None:
    tree = a_line(4)
    branch = Node(5, "branch", NOW, "chk_1", 1, Form.PATCH)
    whole = Node(6, "whole", NOW, "chk_1", 1, Form.DATA)
    grown = Tree(6, 4, {**tree.nodes, 5: branch, 6: whole})
    assert [each.number for each in resting_on(grown, {1})] == [2, 5]
    assert [each.number for each in resting_on(grown, {1, 2})] == [3, 5]
    assert resting_on(grown, {4}) == []


def test_the_line_of_a_checkpoint_leads_back_to_where_it_began() -> None:
    tree = a_line(4)
    assert [each.number for each in line_to(tree, 3)] == [3, 2, 1]
    assert list(line_to(tree, None)) == []
    assert list(line_to(tree, 9)) == []
