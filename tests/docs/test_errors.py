"""The reference of errors is the table of faults, written out."""

from tests.docs.errors import PAGE, page


def test_the_reference_has_every_fault_as_it_is() -> None:
    assert PAGE.read_text(encoding="utf-8") == page()
