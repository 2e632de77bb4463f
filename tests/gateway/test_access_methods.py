"""Access in MGP's words."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from msgspec import Raw

from comity.errors import INVALID_PARAMS, MalformedMessage
from comity.gateway.access_methods import (
    AccessQuery,
    EntryType,
    decode_access_query,
    decode_grant,
    decode_revocation,
    describe_access,
    entry_type,
)
from comity.mcp import jsonrpc
from comity.policy.grants import Effect, Grant
from tests.support.cases import loop_over

WHERE: dict[str, Any] = {"agent_id": "agent:ci", "server_id": "files"}


def said(**params: Any) -> dict[str, Raw]:
    return {name: jsonrpc.to_raw(value) for name, value in params.items()}


def test_a_question_names_an_agent_or_means_whoever_asks() -> None:
    asked = decode_access_query(said(**WHERE, tool_name="read"))
    assert asked == AccessQuery("agent:ci", "files", "read")
    assert decode_access_query(said(server_id="files", tool_name=None)) == AccessQuery(
        None, "files", ""
    )


def test_an_entry_is_about_a_server_or_a_tool() -> None:
    whole = decode_grant(said(**WHERE, entry_type="server_grant", permission="allow"))
    assert whole == Grant("agent:ci", "tools/call", "files/*", Effect.ALLOW)
    one = decode_grant(
        said(
            **WHERE,
            entry_type="tool_grant",
            tool_name="read",
            permission="deny",
            granted_by="person:ana",
            justification="why",
            expires_at="2026-12-31T18:00:00+01:00",
        )
    )
    assert (one.target, one.effect, one.granted_by) == ("files/read", Effect.DENY, "person:ana")
    assert one.expires_at == datetime(2026, 12, 31, 17, tzinfo=UTC)
    assert decode_revocation(said(**WHERE, entry_type="server_grant")) == ("agent:ci", "files/*")
    assert [entry_type(each.target) for each in (whole, one)] == [*EntryType]


@loop_over(
    "wrong",
    [
        {"entry_type": "other"},
        {"entry_type": "tool_grant"},
        {"tool_name": "read"},
        {"server_id": ""},
        {"server_id": "*"},
        {"agent_id": "agent:*"},
        {"permission": None},
        {"expires_at": "2026-12-31T18:00:00"},
        {"granted_by": 1},
    ],
    ids=str,
)
def test_what_cannot_be_an_entry_is_refused(wrong: dict[str, Any]) -> None:
    whole = {**WHERE, "entry_type": "server_grant", "permission": "allow", **wrong}
    with pytest.raises(MalformedMessage) as refused:
        decode_grant(said(**whole))
    assert refused.value.fault is INVALID_PARAMS


def test_a_state_is_shown_with_its_provenance_or_with_nothing() -> None:
    at = datetime(2026, 11, 15, 13, tzinfo=timezone(timedelta(hours=1)))
    entry = Grant("a", "tools/call", "f/*", Effect.ALLOW, granted_by="b", granted_at=at)
    assert describe_access(Effect.ALLOW, "server_grant", entry) == {
        "permission": "allow",
        "source": "server_grant",
        "granted_by": "b",
        "granted_at": "2026-11-15T12:00:00.000Z",
        "expires_at": None,
    }
    assert describe_access(Effect.DENY, "default_policy", None)["granted_by"] is None
