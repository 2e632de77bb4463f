"""Asks of a running gateway as they come: a table that stays up to date, or a line for each."""

import http.client
import json
import queue
import sys
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Final, NoReturn

from rich.console import Console
from rich.live import Live

from comity.cli.ask_views import ask_of, line, listed, plain
from comity.cli.asking import Answer, Gateway
from comity.wire.asks import Ask
from comity.wire.errors import MalformedMessage, Misconfigured, Unavailable
from comity.wire.sse import EventParser

STREAM: Final = "/api/asks/stream"
SILENCE: Final = timedelta(seconds=60)
"""A stream says at least every quarter of a minute that it lives."""

LONGEST_PAUSE: Final = 10.0
_PIECE: Final = 64 * 1024

type Event = tuple[str, Answer]


def events(gateway: Gateway) -> Iterator[Event]:
    """Every event, over one connection after the other; begins anew where one breaks off.

    Raises Unavailable where nobody answers at first, Misconfigured where the key is not taken.
    """
    pause, was_heard = 0.0, False
    while True:
        try:
            for event in _once(gateway):
                pause, was_heard = 0.0, True
                yield event
                if event[0] == "lost":
                    break
        except Unavailable:
            if not was_heard:
                raise
        pause = min(max(1.0, pause * 2), LONGEST_PAUSE)
        time.sleep(pause)


def _once(gateway: Gateway) -> Iterator[Event]:
    connection, parser = gateway.connect(SILENCE), EventParser()
    headers = {"Accept": "text/event-stream", **gateway.credentials}
    try:
        connection.request("GET", STREAM, headers=headers)
        reply = connection.getresponse()
        if reply.status != 200:
            _refused(gateway, reply.status)
        while piece := reply.read1(_PIECE):
            for found in parser.feed(piece):
                if found.data:
                    yield found.event, json.loads(found.data)
    except (OSError, http.client.HTTPException, ValueError, MalformedMessage) as problem:
        raise gateway.unreachable(problem) from None
    finally:
        connection.close()


def _refused(gateway: Gateway, status: int) -> NoReturn:
    if status == 401:
        raise gateway.key_needed("show one that counts")
    raise Unavailable(f"{gateway.url} does not tell of asks just now (status {status})")


def watch(gateway: Gateway, *, as_json: bool) -> None:
    """Show asks until somebody interrupts it."""
    if sys.stdout.isatty() and not as_json:
        _live(gateway)
        return
    for name, said in events(gateway):
        _demand_going_on(name, said)
        if name == "ask":
            text = json.dumps(said) if as_json else line(ask_of(said))
            sys.stdout.write(f"{text}\n")
            sys.stdout.flush()


def _demand_going_on(name: str, said: Answer) -> None:
    if name == "end":
        raise Misconfigured(f"the gateway has ended the stream: {said.get('reason', '')!s:.300}")


def _live(gateway: Gateway) -> None:
    heard: queue.SimpleQueue[Event | Exception] = queue.SimpleQueue()
    threading.Thread(target=_hear, args=(gateway, heard), daemon=True).start()
    shown: dict[str, Ask] = {}
    with Live(console=Console(highlight=False), auto_refresh=False) as live:
        while True:
            for each in _heard(heard):
                if isinstance(each, Exception):
                    raise each
                _take(shown, *each)
            found = listed(shown.values()) if shown else plain("Nothing waits for an answer.")
            live.update(found, refresh=True)


def _hear(gateway: Gateway, heard: "queue.SimpleQueue[Event | Exception]") -> None:
    try:
        for event in events(gateway):
            heard.put(event)
    except (Misconfigured, Unavailable) as error:
        heard.put(error)


def _heard(heard: "queue.SimpleQueue[Event | Exception]") -> Iterator[Event | Exception]:
    """What has come; or nothing after a second, so that what is shown grows older all the same."""
    try:
        yield heard.get(timeout=1.0)
        while not heard.empty():
            yield heard.get()
    except queue.Empty:
        return


def _take(shown: dict[str, Ask], name: str, said: Answer) -> None:
    _demand_going_on(name, said)
    if name == "lost":
        shown.clear()
    elif name == "ask":
        ask = ask_of(said)
        shown.pop(ask.id, None)
        if ask.is_open:
            shown[ask.id] = ask
