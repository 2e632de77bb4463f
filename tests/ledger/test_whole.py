"""Every row of this project is settled once, as far as can be told before the tests run."""

import pytest

from tests.ledger.catalogue import read_deviations, read_requirements
from tests.ledger.plugin import is_full_run, named_rows


def test_every_row_is_named_by_a_test_or_reasoned_and_none_is_both(
    request: pytest.FixtureRequest,
) -> None:
    if not is_full_run(request.config):
        pytest.skip("only a full run collects every mark")
    rows = read_requirements(request.config.rootpath)
    reasoned = read_deviations(request.config.rootpath, rows).keys()
    named = {row for item in request.session.items for row in named_rows(item)}
    assert (sorted(rows.keys() - named - reasoned), sorted(named & reasoned)) == ([], [])
