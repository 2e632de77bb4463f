"""From the credentials of a request to an actor: keys, remembered proofs, the local user."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from comity.errors import UNAUTHENTICATED, MalformedMessage, Unavailable
from comity.identity.authentication import (
    REMEMBERED,
    Authenticator,
    RequestCredentials,
    TokenClaims,
    is_loopback,
)
from comity.identity.principals import Principal
from comity.mcp.actors import LOCAL, LOCAL_OPERATOR, Actor, PrincipalKind
from tests.support.cases import loop_over
from tests.support.clock import ManualClock
from tests.support.credentials import GivenOut

NOW = datetime(2026, 11, 15, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


class Proving:
    """Takes every token for proof of its own text; counts how often it is asked."""

    def __init__(self, lasts: timedelta = 60 * MINUTE, paths: tuple[str, ...] = ("",)) -> None:
        self.lasts = lasts
        self.paths = paths
        self.asked = 0
        # The groups that its tokens name, if they name any.
        self.groups: tuple[str, ...] | None = None

    async def prove(self, token: str) -> TokenClaims:
        self.asked += 1
        if token == "wrong":
            raise MalformedMessage("no", UNAUTHENTICATED)
        actor = Actor(f"person:{token}", PrincipalKind.PERSON)
        if self.groups is not None:
            actor = replace(actor, groups=self.groups, has_claimed_groups=True)
        return TokenClaims(actor, NOW + self.lasts, self.paths)


def bearing(credential: str, path: str = "/mcp", peer: str = "127.0.0.1") -> RequestCredentials:
    return RequestCredentials({b"authorization": f"Bearer {credential}".encode()}, peer, path, True)


async def test_a_key_gives_its_party_and_its_bounds() -> None:
    given_out = GivenOut()
    key = given_out.give("agent:ci", permissions=("ToolInvoke(files/read)", "AdminRead"))
    identity = Authenticator(given_out.register)
    actor = await identity.identify(bearing(key))
    assert (actor.party, actor.kind) == ("agent:ci", PrincipalKind.AGENT)
    assert actor.permissions == (("tools/call", "files/read"), ("admin/read", "*"))
    assert actor.credential == f"key:{key.split('_')[2]}"
    assert await identity.identify(bearing(key)) is actor


async def test_a_change_of_the_key_or_of_its_party_counts_at_once() -> None:
    given_out = GivenOut()
    key = given_out.give("agent:ci")
    identity = Authenticator(given_out.register)
    assert (await identity.identify(bearing(key))).permissions is None
    given_out.change(key, permissions=("AdminRead",))
    assert (await identity.identify(bearing(key))).permissions == (("admin/read", "*"),)
    given_out.parties["agent:ci"] = Principal("agent:ci", PrincipalKind.PERSON)
    assert (await identity.identify(bearing(key))).kind is PrincipalKind.PERSON


def test_whom_another_node_has_recognised_is_known_as_the_records_here_say() -> None:
    given_out, clock = GivenOut(), ManualClock(NOW)
    key = given_out.give("agent:ci", permissions=("AdminRead",))
    identity = Authenticator(given_out.register, clock=clock)
    proved = Actor("agent:ci", PrincipalKind.PERSON, f"key:{key.split('_')[2]}")
    known = identity.refresh_actor(proved)
    assert known is not None
    assert (known.kind, known.permissions) == (PrincipalKind.AGENT, (("admin/read", "*"),))
    assert identity.refresh_actor(replace(proved, party="agent:other")) is None
    assert identity.refresh_actor(replace(proved, credential="key:none")) is None
    assert identity.refresh_actor(LOCAL) is None
    assert Authenticator(given_out.register, is_local=True).refresh_actor(LOCAL) is LOCAL
    token = Actor("person:ana", PrincipalKind.PERSON, "token", expires_at=NOW + MINUTE)
    assert identity.refresh_actor(token) is token
    clock.now += MINUTE
    assert identity.refresh_actor(token) is None
    given_out.disable("agent:ci")
    assert identity.refresh_actor(proved) is None


def test_a_party_that_is_named_is_known_only_while_it_and_its_key_count() -> None:
    given_out = GivenOut()
    key = given_out.give("person:ana@example.org", permissions=("AdminRead",))
    key_id, identity = key.split("_")[2], Authenticator(given_out.register)
    given_out.parties["person:ana@example.org"] = Principal(
        "person:ana@example.org", PrincipalKind.PERSON
    )
    named = identity.find_actor("person:ana@example.org")
    assert named is not None
    assert (named.kind, named.permissions) == (PrincipalKind.PERSON, None)
    holder = identity.find_actor("person:ana@example.org", key_id)
    assert holder is not None
    assert holder.permissions == (("admin/read", "*"),)
    assert identity.find_actor("person:nobody") is None
    assert identity.find_actor("person:ana@example.org", "other") is None
    given_out.give("agent:ci")
    assert identity.find_actor("agent:ci", key_id) is None
    given_out.revoke(key)
    assert identity.find_actor("person:ana@example.org", key_id) is None
    given_out.disable("person:ana@example.org")
    assert identity.find_actor("person:ana@example.org") is None


async def test_the_scheme_is_read_whatever_its_letters_and_spaces() -> None:
    given_out = GivenOut()
    key = given_out.give("agent:ci").encode()
    identity = Authenticator(given_out.register)
    for said in (b"bearer " + key, b"BEARER   " + key, b"Bearer " + key + b"  "):
        arrival = RequestCredentials({b"authorization": said})
        assert (await identity.identify(arrival)).party == "agent:ci"


async def test_a_proof_is_remembered_for_a_minute() -> None:
    clock, proving = ManualClock(NOW), Proving()
    identity = Authenticator(GivenOut().register, proving, clock=clock)
    for _ in range(3):
        assert (await identity.identify(bearing("ana"))).party == "person:ana"
    assert proving.asked == 1
    clock.now += MINUTE
    await identity.identify(bearing("ana"))
    assert proving.asked == 2


async def test_a_proof_is_not_remembered_beyond_its_end() -> None:
    clock, proving = ManualClock(NOW), Proving(lasts=timedelta(seconds=5))
    identity = Authenticator(GivenOut().register, proving, clock=clock)
    await identity.identify(bearing("ana"))
    clock.now += timedelta(seconds=5)
    await identity.identify(bearing("ana"))
    assert proving.asked == 2


async def test_a_refusal_is_not_remembered_as_a_proof() -> None:
    identity = Authenticator(GivenOut().register, Proving())
    for _ in range(2):
        with pytest.raises(MalformedMessage):
            await identity.identify(bearing("wrong"))


async def test_right_credentials_count_whatever_wrong_ones_came_from_their_address() -> None:
    given_out = GivenOut()
    key, stranger = given_out.give("agent:ci"), GivenOut()
    identity = Authenticator(given_out.register, Proving())
    for number in range(100):
        wrong = bearing(stranger.give("agent:ci") if number % 2 else "wrong")
        with pytest.raises(MalformedMessage if number < 30 else Unavailable):
            await identity.identify(wrong)
    assert (await identity.identify(bearing(key))).party == "agent:ci"
    assert (await identity.identify(bearing("ana"))).party == "person:ana"


async def test_no_more_proofs_are_remembered_than_there_is_room_for() -> None:
    proving = Proving()
    identity = Authenticator(GivenOut().register, proving, clock=ManualClock(NOW))
    for number in range(REMEMBERED + 1):
        await identity.authenticate(b"%d" % number)
    await identity.authenticate(b"%d" % REMEMBERED)
    assert proving.asked == REMEMBERED + 1
    await identity.authenticate(b"0")
    assert proving.asked == REMEMBERED + 2


async def test_a_remembered_proof_counts_only_where_it_was_meant_to() -> None:
    identity = Authenticator(
        GivenOut().register, Proving(paths=("/servers/a",)), clock=ManualClock(NOW)
    )
    assert await identity.identify(bearing("ana", "/servers/a/mcp"))
    with pytest.raises(MalformedMessage, match="another address"):
        await identity.identify(bearing("ana", "/mcp"))


async def test_a_disabled_party_is_refused_with_a_remembered_proof() -> None:
    given_out = GivenOut()
    identity = Authenticator(given_out.register, Proving(), clock=ManualClock(NOW))
    await identity.identify(bearing("ana"))
    given_out.parties["person:ana"] = Principal("person:ana", disabled=True)
    with pytest.raises(MalformedMessage, match="is disabled"):
        await identity.identify(bearing("ana"))


async def test_the_groups_of_a_credential_come_from_the_record_or_from_the_token() -> None:
    given_out, proving = GivenOut(), Proving()
    key = given_out.give("agent:ci")
    given_out.parties["agent:ci"] = Principal("agent:ci", groups=("qa",))
    given_out.parties["person:ana"] = Principal("person:ana", groups=("sre",))
    identity = Authenticator(given_out.register, proving, clock=ManualClock(NOW))
    assert (await identity.identify(bearing(key))).groups == ("qa",)
    actor = await identity.identify(bearing("ana"))
    assert actor.groups == ("sre",)
    given_out.parties["person:ana"] = Principal("person:ana", groups=("on call", "sre"))
    assert (await identity.identify(bearing("ana"))).groups == ("on call", "sre")
    assert identity.refresh_actor(actor) == replace(actor, groups=("on call", "sre"))
    assert identity.find_actor("person:ana") == Actor(
        "person:ana", credential="link", groups=("on call", "sre")
    )
    proving.groups = ("ops",)
    claimed = await identity.identify(bearing("bea"))
    given_out.parties["person:bea"] = Principal("person:bea", groups=("sre",))
    assert claimed.groups == ("ops",)
    assert await identity.identify(bearing("bea")) == claimed
    assert identity.refresh_actor(claimed) == claimed
    given_out.parties["agent:ci"] = Principal("agent:ci")
    assert (await identity.identify(bearing(key))).groups == ()


async def test_a_credential_of_great_length_is_looked_at_by_nobody() -> None:
    proving = Proving()
    identity = Authenticator(GivenOut().register, proving, clock=ManualClock(NOW))
    for credential in ("", "x" * 16_385):
        with pytest.raises(MalformedMessage):
            await identity.identify(bearing(credential))
    assert proving.asked == 0


@loop_over(
    ("is_local", "peer", "named", "is_let_in"),
    [
        (True, "127.0.0.1", True, True),
        (True, "127.8.9.1", True, True),
        (True, "::1", True, True),
        (True, "::ffff:127.0.0.1", True, True),
        (True, "10.0.0.1", True, False),
        (True, "::ffff:10.0.0.1", True, False),
        (True, "", True, False),
        (True, "localhost", True, False),
        (True, "127.0.0.1", False, False),
        (False, "127.0.0.1", True, False),
    ],
)
async def test_only_this_machine_under_its_own_name_is_the_local_user(
    is_local: bool, peer: str, named: bool, is_let_in: bool
) -> None:
    identity = Authenticator(GivenOut().register, is_local=is_local)
    arrival = RequestCredentials({}, peer, "/mcp", named)
    if is_let_in:
        assert await identity.identify(arrival) is LOCAL
    else:
        with pytest.raises(MalformedMessage):
            await identity.identify(arrival)


def test_what_is_no_address_is_not_this_machine() -> None:
    assert not is_loopback("127.0.0.1.evil.org")


async def test_who_stays_is_known_while_its_key_and_its_party_count() -> None:
    given_out, clock = GivenOut(), ManualClock(NOW)
    key = given_out.give("agent:ci", expires_at=NOW + MINUTE)
    other = given_out.give("agent:ci")
    identity = Authenticator(given_out.register, clock=clock)
    actor = await identity.identify(bearing(key))
    lasting = await identity.identify(bearing(other))
    assert (actor.expires_at, lasting.expires_at) == (NOW + MINUTE, None)
    assert identity.stands(actor)
    clock.now += MINUTE
    assert not identity.stands(actor)
    assert identity.stands(lasting)
    given_out.change(other, revoked_at=clock.now)
    assert not identity.stands(lasting)
    third = await identity.identify(bearing(given_out.give("agent:ci")))
    assert identity.stands(third)
    given_out.disable("agent:ci")
    assert not identity.stands(third)
    assert not identity.stands(Actor("agent:x", credential=third.credential))


def test_who_stays_with_a_token_is_known_until_it_expires() -> None:
    given_out, clock = GivenOut(), ManualClock(NOW)
    identity = Authenticator(given_out.register, Proving(), clock=clock)
    actor = Actor("person:ana", credential="token:https://id.example.org", expires_at=NOW + MINUTE)
    assert identity.stands(actor)
    given_out.parties["person:ana"] = Principal("person:ana", disabled=True)
    assert not identity.stands(actor)
    del given_out.parties["person:ana"]
    clock.now += MINUTE
    assert not identity.stands(actor)


@loop_over(
    ("is_local", "peer", "named", "shown", "found"),
    [
        (True, "127.0.0.1", True, b"Bearer t0ken", LOCAL_OPERATOR),
        (True, "127.0.0.1", True, b"bearer  t0ken", LOCAL_OPERATOR),
        (True, "127.0.0.1", True, b"Bearer t0ke", None),
        (True, "127.0.0.1", True, b"Bearer ", None),
        (True, "127.0.0.1", False, b"Bearer t0ken", None),
        (True, "192.0.2.1", True, b"Bearer t0ken", None),
        (False, "127.0.0.1", True, b"Bearer t0ken", None),
    ],
)
async def test_the_operator_token_makes_the_local_user_an_operator(
    is_local: bool, peer: str, named: bool, shown: bytes, found: Actor | None
) -> None:
    identity = Authenticator(GivenOut().register, is_local=is_local, operator_token="t0ken")
    arrival = RequestCredentials({b"authorization": shown}, peer, "/mcp", named)
    if found is None:
        with pytest.raises(MalformedMessage):
            await identity.identify(arrival)
    else:
        assert await identity.identify(arrival) is found


async def test_an_empty_operator_token_is_nobodys() -> None:
    identity = Authenticator(GivenOut().register, is_local=True)
    with pytest.raises(MalformedMessage):
        await identity.identify(
            RequestCredentials({b"authorization": b"Bearer "}, "127.0.0.1", "", True)
        )


def test_the_local_user_is_known_where_it_is_let_in() -> None:
    identity = Authenticator(GivenOut().register, is_local=True)
    assert identity.stands(LOCAL)
    assert identity.stands(LOCAL_OPERATOR)
    assert not Authenticator(GivenOut().register).stands(LOCAL)
