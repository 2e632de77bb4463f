"""Messages to a server where each is a POST of its own; no notice is overtaken by what follows it.

POSTs under way together may arrive in any order. Questions and answers may overtake each other; but
`initialized` has to be there before the first question, so whatever follows a notice waits until
the server has taken the notice, or has had its time to.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Final

from comity.adapters.upstream.origin import Origin
from comity.adapters.upstream.pool import Pool
from comity.adapters.upstream.sending import Sending
from comity.wire.errors import EXHAUSTED, Unavailable
from comity.wire.mcp import Stream

log = logging.getLogger(__name__)

MOST_POSTS: Final = 1024
MOST_WAITING_BYTES: Final = 16 * 1024 * 1024
MOST_REPLY_BYTES: Final = 64 * 1024
PATIENCE_SECONDS: Final = 10.0

type Refused = Callable[[int, Unavailable], None]


class Post:
    """One message on its way; its HTTP status is all that is read of the response."""

    __slots__ = ("_posts", "_read", "body", "is_notice", "is_settled", "sending", "stream")

    def __init__(self, posts: "Posts", body: bytes, stream: Stream, is_notice: bool) -> None:
        self.body = body
        self.stream = stream
        self.is_notice = is_notice
        self.is_settled = False
        self.sending: Sending | None = None
        self._posts = posts
        self._read = 0

    def started(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        taken = 200 <= status < 300
        self._posts.settled(self, None if taken else Unavailable(explain(status)))

    def data(self, chunk: bytes) -> None:
        self._read += len(chunk)
        if self._read > MOST_REPLY_BYTES:
            self._posts.drop(self)

    def ended(self) -> None:
        self._posts.over(self)

    def failed(self, error: Unavailable) -> None:
        self._posts.settled(self, error)
        self._posts.over(self)


class Posts:
    """All that is posted on one link, to the one address that the server named."""

    def __init__(self, pool: Pool, origin: Origin, head: bytes, refused: Refused) -> None:
        self._pool = pool
        self._origin = origin
        self._head = head
        self._refused = refused
        self._loop = asyncio.get_running_loop()
        self._under_way: set[Post] = set()
        self._waiting: deque[Post] = deque()
        self._waiting_bytes = 0
        self._held_by: Post | None = None
        self._deadlines: dict[Post, asyncio.TimerHandle] = {}
        self._closed = False

    def send(self, body: bytes, stream: Stream, *, is_notice: bool) -> None:
        """Post it, now or after the notice that is under way. Raises Unavailable."""
        if self._closed:
            raise Unavailable("the server's stream has ended")
        full = len(self._under_way) + len(self._waiting) >= MOST_POSTS
        if full or self._waiting_bytes + len(body) > MOST_WAITING_BYTES:
            raise Unavailable("the server takes messages too slowly; wait for some", EXHAUSTED)
        post = Post(self, body, stream, is_notice)
        if self._held_by is None and not self._waiting:
            self._begin(post)
        else:
            self._waiting.append(post)
            self._waiting_bytes += len(body)

    def abandon(self, stream: int) -> None:
        """Nobody waits for this question: do not send it, or do not wait for its reception."""
        for post in [one for one in self._waiting if one.stream == stream]:
            self._waiting.remove(post)
            self._waiting_bytes -= len(post.body)
        for post in [one for one in self._under_way if one.stream == stream]:
            if not post.is_settled:
                self.drop(post)

    def close(self) -> None:
        self._closed = True
        self._waiting.clear()
        for post in list(self._under_way):
            self.drop(post)

    def settled(self, post: Post, error: Unavailable | None) -> None:
        """The server took the message, or will not."""
        if post.is_settled:
            return
        post.is_settled = True
        self._release(post)
        if error is None:
            return
        if post.stream:
            self._refused(post.stream, error)
        else:
            log.info("a server did not take a message: %s", error)

    def drop(self, post: Post) -> None:
        """Read no more of the response."""
        post.is_settled = True
        if post.sending is not None:
            post.sending.abort()
        self._release(post)
        self.over(post)

    def over(self, post: Post) -> None:
        self._under_way.discard(post)

    def _begin(self, post: Post) -> None:
        self._under_way.add(post)
        if not post.stream:
            # A question has its caller's deadline; nobody waits for anything else.
            timer = self._loop.call_later(PATIENCE_SECONDS, self._lose_patience, post)
            self._deadlines[post] = timer
        if post.is_notice:
            self._held_by = post
        body, post.body = post.body, b""
        post.sending = self._pool.send(self._origin, self._head, body, post)

    def _release(self, post: Post) -> None:
        timer = self._deadlines.pop(post, None)
        if timer is not None:
            timer.cancel()
        if self._held_by is post:
            self._held_by = None
            # Not at once: a pool that refuses would lead back here, deeper for each that waits.
            self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        while self._waiting and self._held_by is None:
            post = self._waiting.popleft()
            self._waiting_bytes -= len(post.body)
            self._begin(post)

    def _lose_patience(self, post: Post) -> None:
        log.warning("%s did not take a message in time", self._origin)
        self.drop(post)


def explain(status: int) -> str:
    """What an HTTP status that was not hoped for means, and what to look at."""
    if status in (401, 403):
        return f"the server answered HTTP {status}: check the credentials in its headers"
    if status == 404:
        return "the server answered HTTP 404: check its URL"
    if status == 405:
        return 'the server answered HTTP 405: does it speak streamable HTTP? Try type "http"'
    if 300 <= status < 400:
        return f"the server answered HTTP {status}: give the URL that it leads to"
    return f"the server answered HTTP {status}"
