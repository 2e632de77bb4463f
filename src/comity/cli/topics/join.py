"""A person joins a topic, on a screen or with plain lines."""

import asyncio
import logging
import sys
from datetime import timedelta
from typing import Any, Final, Protocol

from rich.console import Console

from comity.cli.api_client import ApiClient
from comity.cli.exit_status import DONE, FAILED
from comity.cli.topics.plain import PlainLineView
from comity.cli.topics.screen import TopicScreen
from comity.cli.topics.session import TopicCliSession
from comity.errors import ACCESS_DENIED, NOTHING_HERE, UNAUTHENTICATED, Misconfigured, Unavailable
from comity.sdk.topics.participant import Participant, ParticipantOptions, join_topic
from comity.topics.rules import DeliveryMode

TIMEOUT: Final = timedelta(seconds=10)
ANSWER_WITHIN: Final = timedelta(minutes=5)
_FOR_GOOD: Final = (ACCESS_DENIED, NOTHING_HERE)


class _JoinView(Protocol):
    def on_raw_envelope(self, frame: bytes) -> None: ...

    async def attend(self, me: Participant) -> TopicCliSession: ...


def run_topic_session(gateway: ApiClient, topic: str, wishes: dict[str, Any]) -> int:
    """Be there until the person leaves; gives the exit status."""
    _demand_somebody(gateway)
    # What happens is told here as what it is; nothing is left for a log to say.
    for name in ("comity", "websockets"):
        logging.getLogger(name).addHandler(logging.NullHandler())
    has_screen = _has_screen() and not (wishes["as_json"] or wishes["is_plain"])
    view = (
        TopicScreen()
        if has_screen
        else PlainLineView(as_json=wishes["as_json"], is_staying=wishes["is_staying"])
    )
    try:
        person = asyncio.run(_sat(gateway, topic, wishes, view))
    except Unavailable as refused:
        raise _refusal(gateway, refused) from None
    return DONE if has_screen or not person.failures else FAILED


def _has_screen() -> bool:
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    return is_terminal and not Console().is_dumb_terminal


def _demand_somebody(gateway: ApiClient) -> None:
    """Raise at once if the gateway cannot be reached, instead of after several attempts."""
    connection = gateway.connect(TIMEOUT)
    try:
        connection.connect()
    except OSError as problem:
        raise gateway.unreachable(problem) from None
    finally:
        connection.close()


async def _sat(
    gateway: ApiClient, topic: str, wishes: dict[str, Any], view: _JoinView
) -> TopicCliSession:
    options = ParticipantOptions(
        patience=TIMEOUT,
        answer_within=ANSWER_WITHIN,
        # Members may use these kinds if the gateway allows them.
        has_later_kinds=True,
        alias=wishes["alias"] or "",
        overhear=view.on_raw_envelope,
    )
    async with join_topic(
        gateway.url,
        topic,
        token=gateway.credential,
        mode=DeliveryMode(wishes["mode"]),
        options=options,
    ) as me:
        person = await view.attend(me)
        why = me.ended
    if why is not None:
        raise Unavailable(str(why), why.fault)
    return person


def _refusal(gateway: ApiClient, refused: Unavailable) -> Misconfigured | Unavailable:
    """The error for a refused or ended membership, by its cause."""
    if refused.fault is UNAUTHENTICATED:
        return gateway.key_needed_error(str(refused))
    return Misconfigured(str(refused)) if refused.fault in _FOR_GOOD else refused
