"""The words of both eras: no version in two eras, no word spelled twice, headers in lower case."""

from typing import cast

import pytest

from comity.wire import mcp

WORDS = {
    name: cast(object, found)
    for name, found in vars(mcp).items()
    if name.isupper() and not name.startswith("_")
}
METHODS = {
    name: found
    for name, found in WORDS.items()
    if isinstance(found, str) and not found.startswith(("20", "io."))
}
HEADERS = {name: found for name, found in WORDS.items() if name.endswith("_HEADER")}


def test_no_version_belongs_to_both_eras() -> None:
    versions = [*mcp.HANDSHAKE_VERSIONS, *mcp.MODERN_VERSIONS]
    assert versions == sorted(set(versions))


def test_the_latest_version_of_an_era_is_its_last() -> None:
    assert mcp.LATEST_HANDSHAKE == "2025-11-25"
    assert mcp.LATEST_MODERN == "2026-07-28"
    assert mcp.UNSTATED_VERSION in mcp.HANDSHAKE_VERSIONS


def test_no_method_has_two_names_here() -> None:
    assert len(set(METHODS.values())) == len(METHODS)


def test_what_expects_no_answer_is_called_a_notification() -> None:
    told = {method for method in METHODS.values() if method.startswith("notifications/")}
    assert told > mcp.LIST_CHANGES
    asked = {*mcp.NAMED_BY, *mcp.CLIENT_CAPABILITY, *mcp.SERVER_CAPABILITY}
    assert asked <= {*METHODS.values()} - told


@pytest.mark.parametrize("header", HEADERS.values(), ids=HEADERS.keys())
def test_a_header_is_written_as_it_is_compared(header: object) -> None:
    assert isinstance(header, bytes)
    assert header == header.lower().strip()


@pytest.mark.parametrize(
    "key",
    [
        mcp.PROTOCOL_VERSION,
        mcp.CLIENT_CAPABILITIES,
        mcp.CLIENT_INFO,
        mcp.SERVER_INFO,
        mcp.SUBSCRIPTION_ID,
    ],
)
def test_the_keys_of_the_envelope_share_one_prefix(key: str) -> None:
    assert key.startswith("io.modelcontextprotocol/")


def test_log_levels_rise_from_debug_to_emergency() -> None:
    assert (mcp.LOG_LEVELS[0], mcp.LOG_LEVELS[-1]) == ("debug", "emergency")
    assert len(set(mcp.LOG_LEVELS)) == 8


def test_an_era_is_told_by_its_name() -> None:
    assert {era.value for era in mcp.Era} == {"handshake", "modern"}
