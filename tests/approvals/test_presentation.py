"""How an approval request reads, and the links to it."""

import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comity.approvals import presentation
from comity.approvals.model import (
    ApprovalAnswer,
    ApprovalDecision,
    ApprovalKind,
    ApprovalRequest,
    ApprovalState,
    new_request_id,
)
from comity.approvals.presentation import ApprovalLink, ApprovalLinks, sign_notice
from comity.toolkit.sealed_tokens import seal_token

NOW = datetime(2026, 11, 15, 12, 0, tzinfo=UTC)
ANA = "person:ana@example.org"


def an_ask(
    number: int = 1, risk: str = "dangerous", arguments: Any = None, **changed: Any
) -> ApprovalRequest:
    about: Mapping[str, object] = {
        "tool": "files__write",
        "risk": risk,
        "definition": "d" * 64,
        "arguments": {"path": "/a"} if arguments is None else arguments,
        "arguments_digest": "a" * 64,
    }
    at = NOW - timedelta(minutes=number)
    ask = ApprovalRequest(
        *(
            new_request_id(at, bytes([number] * 10)),
            ApprovalKind.CONFIRM,
            "agent:ci",
            "files",
            "write",
        ),
        *(f"digest {number}", "agent:ci wants to call files__write", about),
        *(at, NOW + timedelta(minutes=14)),
    )
    return replace(ask, **changed)


def text_of(ask: ApprovalRequest, likeness: str = "") -> dict[str, str]:
    return {row.name: row.text for row in presentation.detail_rows(ask, NOW, likeness)}


def test_everything_that_would_run_is_named() -> None:
    told = text_of(an_ask())
    assert told["Requested by"] == "agent:ci"
    assert (told["Server"], told["Tool"], told["Risk"]) == ("files", "write", "dangerous")
    assert '"path": "/a"' in told["Arguments"]
    assert told["Definition"] == "d" * 64
    assert told["Expires"] == "in 14 min, at 2026-11-15 12:14:00 UTC"
    assert presentation.describe_request(an_ask()) == "agent:ci wants to call files__write"


@pytest.mark.parametrize(
    "trick",
    [
        "\x1b[2J\x1b[1;1H",
        "\u202esafe\u202c",
        "x\nRisk  safe",
        "x\u2028Risk  safe",
        "x\rRisk: safe",
        "\u200b",
        "\x9b2J",
        "\u3164",
        "\U000e0041",
    ],
    ids=ascii,
)
def test_no_stranger_steers_a_terminal_or_hides_a_word(trick: str) -> None:
    ask = an_ask(arguments={trick: trick}, asker=f"agent:{trick}", tool=trick, trace=trick)
    ask = replace(
        ask, answers=(ApprovalAnswer(trick, ApprovalDecision.DEFER, NOW, trick),), server=trick
    )
    shown = [
        *(row.text for row in presentation.detail_rows(ask, NOW, trick)),
        presentation.describe_request(ask),
    ]
    for text in shown:
        lines = text.split("\n")
        assert all(line.isprintable() for line in lines), ascii(text)
        assert not any(each in text for each in "\u3164\u202e\u200b\U000e0041")
    plain = [row.text for row in presentation.detail_rows(ask, NOW, trick) if not row.is_code]
    assert not any("\n" in text for text in plain)


def test_the_details_beside_which_people_answer_are_never_cut() -> None:
    arguments = {"code": "x" * 50_000, "then": "rm -r /"}
    ask = an_ask(arguments=arguments)
    assert json.loads(text_of(ask)["Arguments"]) == arguments
    assert not presentation.fits_message(ask)
    assert "more characters not shown" in presentation.indented_json(arguments)


def test_arguments_that_were_not_kept_are_named_by_their_digest() -> None:
    ask = an_ask()
    told = text_of(replace(ask, about={**ask.about, "arguments": None}))
    assert told["Arguments"].startswith("not stored")
    assert told["Digest"] == "a" * 64


def test_a_proposal_says_in_which_topic_it_was_made() -> None:
    ask = an_ask()
    assert "Topic" not in text_of(ask)
    assert text_of(replace(ask, about={**ask.about, "topic": "ops"}))["Topic"] == "ops"


def test_the_riskiest_come_first_and_then_the_oldest() -> None:
    asks = [an_ask(1, "safe"), an_ask(2, "dangerous"), an_ask(3, "dangerous"), an_ask(4, "odd")]
    found = [presentation.request_risk(each) for each in presentation.sort_by_urgency(asks)]
    assert found == ["dangerous", "dangerous", "safe", "odd"]
    assert presentation.sort_by_urgency(asks)[0] is asks[2]


def test_an_id_is_shortened_as_far_as_it_stays_the_only_one() -> None:
    ids = ["0abcdefghij1", "0abcdefghij2", "1zzzzzzzzzzz"]
    assert presentation.short_ids(ids) == {
        "0abcdefghij1": "0abcdefghij1",
        "0abcdefghij2": "0abcdefghij2",
        "1zzzzzzzzzzz": "1zzzzzzz",
    }


def approved(number: int, **changed: Any) -> ApprovalRequest:
    answers = (ApprovalAnswer(ANA, ApprovalDecision.ACCEPT, NOW),)
    return an_ask(number, state=ApprovalState.CONSUMED, answers=answers, **changed)


def test_it_is_said_how_often_the_like_was_approved_and_what_is_different() -> None:
    before = presentation.collect_similar([approved(n) for n in range(2, 24)])
    assert presentation.describe_similar(an_ask(arguments={"path": "/etc/passwd"}), before) == (
        "same tool and principal approved 22 times in the last 24 h; "
        "this one differs from the last approved one in path"
    )
    again = replace(an_ask(), digest="digest 5")
    assert presentation.describe_similar(again, before).endswith("with the same arguments")
    other = replace(an_ask(), asker="agent:other")
    assert presentation.describe_similar(other, before).startswith(
        "No earlier decisions for this agent and tool"
    )


def test_what_was_declined_is_counted_apart() -> None:
    declined = an_ask(
        3,
        state=ApprovalState.DENIED,
        answers=(ApprovalAnswer(ANA, ApprovalDecision.DECLINE, NOW),),
    )
    expired = an_ask(4, state=ApprovalState.EXPIRED)
    before = presentation.collect_similar([declined, expired])
    told = presentation.describe_similar(an_ask(), before)
    assert told == "same tool and principal denied 1 time in the last 24 h"
    both = presentation.describe_similar(
        an_ask(), presentation.collect_similar([declined, approved(2)])
    )
    assert "approved 1 time and denied 1 time" in both


def test_what_became_of_it_is_told_with_whose_word_it_was() -> None:
    ask = an_ask(
        state=ApprovalState.DENIED,
        answers=(ApprovalAnswer(ANA, ApprovalDecision.DECLINE, NOW, "not on a Friday"),),
    )
    assert presentation.describe_state(ask) == (f"Denied. {ANA} denied it: not on a Friday.")
    assert "State" not in text_of(an_ask())


@pytest.mark.parametrize("state", ApprovalState)
def test_every_state_has_its_words(state: ApprovalState) -> None:
    assert presentation.describe_state(an_ask(state=state)).endswith(".")


def test_a_question_of_another_kind_shows_what_it_is_about() -> None:
    ask = an_ask(kind=ApprovalKind.PERMISSION, message="files needs network.outbound")
    ask = replace(ask, about={"permission": "network.outbound"})
    assert presentation.describe_request(ask) == "files needs network.outbound"
    assert '"permission": "network.outbound"' in text_of(ask)["About"]
    assert presentation.describe_similar(ask, {}) == ""


def test_the_fields_for_programs_hold_no_more_than_what_is_kept() -> None:
    told = presentation.request_fields(approved(1))
    assert told["risk"] == "dangerous"
    assert told["answers"] == [{"by": ANA, "verdict": "accept", "at": NOW, "reason": ""}]


@pytest.mark.parametrize(
    ("time", "told"),
    [(5, "5 s"), (119, "119 s"), (120, "2 min"), (7200, "2 hours"), (1e6, "11 days")],
)
def test_a_length_of_time_is_told_in_one_unit(time: float, told: str) -> None:
    assert presentation.format_duration(timedelta(seconds=time)) == told


def test_a_server_s_own_question_amid_a_call_is_not_told_as_that_call() -> None:
    asked = an_ask(options=("confirm", "cancel"), message="Server files asks: sure?")
    assert presentation.describe_request(asked) == "Server files asks: sure?"
    assert presentation.describe_similar(asked, {}) == ""


# Links, and signatures of posts.


LATER = NOW + timedelta(minutes=10)
LINKS = ApprovalLinks(b"a pepper that every node has")
LINK = ApprovalLink("ask-1", "person:ana@example.org", LATER, "key:abc")


def test_a_link_comes_back_as_it_was_made_on_any_node_with_the_pepper() -> None:
    token = LINKS.seal(LINK)
    assert ApprovalLinks(b"a pepper that every node has").unseal(token, "ask-1", NOW) == LINK


def test_link_of_another_request_time_or_pepper_is_refused() -> None:
    token = LINKS.seal(LINK)
    assert LINKS.unseal(token, "ask-2", NOW) is None
    assert LINKS.unseal(token, "ask-1", LATER) is None
    assert LINKS.unseal(ApprovalLinks(b"another").seal(LINK), "ask-1", NOW) is None


@given(st.data())
def test_a_link_that_was_changed_anywhere_is_refused(data: st.DataObject) -> None:
    token = LINKS.seal(LINK)
    place = data.draw(st.integers(0, len(token) - 1))
    letter = data.draw(st.sampled_from("ABab01-_").filter(lambda each: each != token[place]))
    assert LINKS.unseal(token[:place] + letter + token[place + 1 :], "ask-1", NOW) is None


@given(st.text(max_size=200))
def test_whatever_else_is_shown_is_no_link(token: str) -> None:
    assert LINKS.unseal(token, "ask-1", NOW) is None


def test_what_was_sealed_for_another_purpose_is_no_link() -> None:
    own = hmac.digest(b"a pepper that every node has", b"links to asks", hashlib.sha256)
    until = str(int(LATER.timestamp()))
    other = seal_token(own, "another purpose", "ask-1", "person:x", until, "")
    assert LINKS.unseal(other, "ask-1", NOW) is None
    assert LINKS.unseal(seal_token(own, "answer an ask", "ask-1"), "ask-1", NOW) is None


def test_a_secret_is_in_no_repr() -> None:
    assert "pepper" not in repr(LINKS)


def test_a_signature_is_over_the_time_and_the_body() -> None:
    said = sign_notice(b"secret", NOW, b'{"type":"approval.requested"}')
    moment, _, signed = said.partition(",")
    assert moment == f"t={int(NOW.timestamp())}"
    over = moment.removeprefix("t=").encode() + b'.{"type":"approval.requested"}'
    assert signed == "v1=" + hmac.new(b"secret", over, hashlib.sha256).hexdigest()
    assert sign_notice(b"secret", LATER, b'{"type":"approval.requested"}') != said
