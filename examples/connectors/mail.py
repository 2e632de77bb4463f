"""A mailbox as channels: letters come in over IMAP, and what is said goes out over SMTP. (MCPL §14)

    MAIL_PASSWORD=... python mail.py desk@example.org imaps://imap.example.org smtps://example.org

Each thread of letters is a channel of its own, so that an answer goes to whoever wrote. What a
program wrote is never brought in, and our letters say that a program wrote them (RFC 3834).
"""

import asyncio
import logging
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from email.utils import parseaddr
from typing import Any, Final

from letters import Letter, Thread, answer_to, read_letter
from mailboxes import Box, Ledger, Postman

from comity.sdk.server import ChannelDescriptor, ChannelDirection, FeatureUse, Message, Post, Server

log = logging.getLogger("mail")

TAKEN: Final = frozenset({"", "duplicate", "own_words", "no_turn"})
"""After these answers of the host a letter is done with; after others it is brought in again."""


@dataclass(frozen=True, slots=True)
class Options:
    """`every` is how often the mailbox is looked into, in seconds."""

    every: float = 5.0
    at_once: int = 50


@dataclass(frozen=True, slots=True)
class Office:
    """Whose letters these are, where they come from and go to, and what is known of them."""

    me: str
    box: Box
    postman: Postman
    ledger: Ledger

    async def send(self, post: Post) -> str | bool:
        """The id of the letter; False where it was not sent."""
        thread = self.ledger.thread(post.channel.id)
        if thread is None:
            return False
        letter = answer_to(self.me, thread, post.text, post.id)
        id = str(letter["Message-ID"])
        if not self.ledger.begin(id):
            # It was sent before; or a crash hid whether it was, and then it is not sent again.
            return id if self.ledger.is_sent(id) else False
        if not await asyncio.to_thread(self.postman.send, letter):
            self.ledger.forget(id)
            return False
        self.ledger.sent(id, replace(thread, last=id))
        return id

    def open(self, kind: str, address: Mapping[str, Any]) -> ChannelDescriptor | None:
        """A thread that we begin."""
        to = parseaddr(str(address.get("to", "")))[1]
        if kind != "mail" or "@" not in to:
            return None
        thread = Thread.begun(to, str(address.get("subject", "")))
        self.ledger.add(thread)
        return described(thread)


def mail_server(office: Office, options: Options | None = None) -> Server:
    chosen, server = options or Options(), Server("mail")
    server.feature("channels.publish", "Send letters", uses=[FeatureUse.PUBLISH], scoped=True)
    server.feature("channels.observe", "Receive letters", uses=[FeatureUse.OBSERVE], scoped=True)
    server.channels.on_publish(office.send)

    @server.channels.on_open
    async def begin(kind: str, address: Mapping[str, Any]) -> ChannelDescriptor | None:
        return office.open(kind, address)

    @server.background
    async def receive() -> None:
        await have_channels(server, office.ledger)
        while True:
            try:
                await bring_in(server, office, chosen.at_once)
            except OSError as problem:
                log.warning("the mailbox cannot be looked into: %s", problem)
            await asyncio.sleep(chosen.every)

    return server


async def bring_in(server: Server, office: Office, at_once: int) -> None:
    """Bring in what is unread; what the host has taken is read."""
    box, ledger = office.box, office.ledger
    for uid, data in await asyncio.to_thread(box.unread, at_once):
        letter = read_letter(data)
        if letter is None or letter.is_automatic or letter.sender == office.me:
            await asyncio.to_thread(box.mark_read, uid)
            continue
        thread = ledger.known(letter) or letter.thread()
        ledger.add(replace(thread, last=letter.id))
        await have_channels(server, ledger)
        (result,) = await server.channels.incoming(message_of(letter, thread))
        if result.accepted or result.reason in TAKEN:
            await asyncio.to_thread(box.mark_read, uid)
        else:
            log.warning("letter %s waits: %s", letter.id, result.reason)


async def have_channels(server: Server, ledger: Ledger) -> None:
    """A channel for each of the last threads, and for no other."""
    now = {each.channel: described(each) for each in ledger.threads()}
    gone = [id for id in server.channels.known if id not in now]
    await server.channels.change(added=now.values(), removed=gone)


def described(thread: Thread) -> ChannelDescriptor:
    label = f"{thread.to}: {thread.subject}"[:200]
    address = {"to": thread.to, "subject": thread.subject}
    return ChannelDescriptor(thread.channel, "mail", label, ChannelDirection.BOTH, address)


def message_of(letter: Letter, thread: Thread) -> Message:
    return Message(
        *(thread.channel, letter.id, letter.text, letter.name or letter.sender, letter.sender),
        thread=thread.key,
        at=letter.at,
        metadata={"subject": letter.subject},
    )


if __name__ == "__main__":
    # Standard output is the protocol's.
    logging.basicConfig(stream=sys.stderr)
    address, imap, smtp = sys.argv[1:4]
    given = (os.environ.get("MAIL_USER", address), os.environ["MAIL_PASSWORD"])
    kept = Ledger(os.environ.get("MAIL_LEDGER", "mail.db"))
    often = Options(float(os.environ.get("MAIL_EVERY", "5")))
    mail_server(Office(address, Box(imap, *given), Postman(smtp, *given), kept), often).run()
