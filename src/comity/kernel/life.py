"""The life of one server: started, watched, and started again by its policy. (MGP §11)

One task lives it, from a start to where nothing follows by itself; whoever wants something else
ends that task first. States follow the table of `comity.rules.lifecycle`.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from comity.kernel.health import Prober
from comity.kernel.listing import Listing
from comity.kernel.patience import Patience
from comity.kernel.pulse import Pulse
from comity.kernel.reached import LinkOptions, Reached
from comity.kernel.standing import Standing, Transition
from comity.ports import Carrier, Reach
from comity.rules.circuit import Passed, Phase
from comity.rules.health import Probing
from comity.rules.lifecycle import Happened
from comity.rules.restarts import Ended, Next, Restarts
from comity.wire.errors import MalformedMessage, Unavailable
from comity.wire.lifecycle import Reason, RestartPolicy, State
from comity.wire.mcp import Era

log = logging.getLogger(__name__)

ASK_AFTER: Final = timedelta(seconds=2)
"""How soon another node is asked again for a server that it runs: that costs nobody a process."""


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """How one server is treated, as far as the kernel is concerned."""

    links: LinkOptions = field(default_factory=LinkOptions)
    restarts: Restarts = field(default_factory=Restarts)
    probing: Probing = field(default_factory=Probing)
    drain: timedelta = timedelta(seconds=30)
    # How long it may be unused, and how many bytes it may hold; zero is no bound.
    stop_when_idle: timedelta = timedelta(0)
    most_memory: int = 0
    # What follows its end instead while it costs no process here, as it runs at another node.
    restarts_elsewhere: Restarts | None = None

    def restarts_of(self, reach: Reach) -> Restarts:
        elsewhere = None if reach.costs_a_process else self.restarts_elsewhere
        return self.restarts if elsewhere is None else elsewhere


class _Overheard:
    """A way to reach a server that hears the last words of a start that came to nothing."""

    def __init__(self, reach: Reach) -> None:
        self._reach = reach
        self._last: Carrier | None = None
        self._is_start = False

    @property
    def costs_a_process(self) -> bool:
        return self._reach.costs_a_process

    def carrier(self, era: Era) -> Carrier:
        made = self._reach.carrier(era)
        if self._is_start:
            self._last = made
        return made

    def begin(self) -> None:
        self._is_start = True

    def end(self) -> Sequence[str]:
        """What was said on the last carrier; nothing of it is held any longer."""
        said = () if self._last is None else tuple(self._last.hints())
        self._is_start, self._last = False, None
        return said


class Life:
    """Where a server stands, how it is reached, and what becomes of it."""

    def __init__(
        self,
        name: str,
        reach: Reach,
        listing: Listing,
        options: ServerOptions,
        tell: Callable[[Transition], None],
    ) -> None:
        self.name = name
        self.tried = asyncio.Event()
        self.restarts = 0
        self.pulse = Pulse(self._falter)
        self.standing = Standing(name, tell)
        self._reach = _Overheard(reach)
        self.reached = Reached(name, self._reach, listing, options.links, self.require, self.pulse)
        self.prober = Prober(self.reached, self.pulse, options.probing)
        self.wanted = asyncio.Event()
        self._options = options
        self._last_words: Sequence[str] = ()
        self._restarted: list[datetime] = []
        self._failures = 0
        self._warned = ""

    def require(self) -> None:
        """Raise Unavailable, at once and with its reason, unless calls can be made."""
        if self.standing.state is not State.CONNECTED:
            self.wanted.set()
            raise self.standing.refusal()

    def hints(self) -> Sequence[str]:
        """The last lines that its process wrote to standard error."""
        shared = self.reached.own or self.reached.modern
        return self._last_words if shared is None else shared.link.carrier.hints()

    def forgive(self) -> None:
        """Hold nothing of before against the server."""
        self._restarted.clear()
        self._failures, self._warned = 0, ""

    def happen(self, happened: Happened, reason: str, *, is_given_up: bool = False) -> None:
        """Take a step, and let calls out only where they may go."""
        self.standing.happen(happened, reason, is_given_up=is_given_up)
        self.pulse.bar = self.require if self._is_barred() else None

    def _is_barred(self) -> bool:
        """Whether no call may go out on any link, not even on one that is a session's own.

        Such a link outlives the gateway's own: a process of the session's lives for itself, but a
        remote server that is away is away for all.
        """
        if self.standing.state is State.CONNECTED or self.standing.starts_on_use:
            return False
        ending = self.standing.state in (State.DRAINING, State.DISCONNECTED)
        return ending or not self.reached.costs_a_process

    async def live(self) -> None:
        """Until nothing more follows by itself; a bug of ours is told and holds up nobody else."""
        try:
            while await self._live_and_follow():
                pass
        except Exception:
            log.exception("the care for server %r ended in a bug", self.name)
            self.happen(Happened.FAILED, "the gateway failed in caring for it; see its log")
            self.tried.set()

    def following(self, reason: Reason) -> Next:
        """What would follow if it were ended for this reason now."""
        restarts = self._options.restarts_of(self._reach)
        return restarts.after(reason, self._restarted, datetime.now(UTC))

    async def resume(self, following: Next) -> None:
        """Go on after it was ended for what it used: when it is used again, or after a pause."""
        if following is Next.ON_USE:
            self.wanted.clear()
            await self.wanted.wait()
            self.standing.starts_on_use = False
        elif following is Next.AGAIN:
            self._failures += 1
            pause = self._delay()
            self.standing.will_start_in(pause)
            await asyncio.sleep(pause.total_seconds())
            self._restarted.append(datetime.now(UTC))
        else:
            self._warn(f"{self.standing.reason}; it is not started again")
            return
        self.restarts += 1
        await self.live()

    async def _live_and_follow(self) -> bool:
        """One life, and what comes after it; whether another follows."""
        ended, because = await self._live()
        loop, pause = asyncio.get_running_loop(), self._delay()
        resume_at = loop.time() + pause.total_seconds()
        following = self._decide(ended, because, pause)
        self.tried.set()
        self.wanted.clear()
        await self.reached.let_go()
        if following is Next.AGAIN:
            await asyncio.sleep(resume_at - loop.time())
        elif following is Next.ON_USE:
            await self.wanted.wait()
        else:
            return False
        self.standing.starts_on_use = False
        self.restarts += 1
        now = datetime.now(UTC)
        window = self._options.restarts_of(self._reach)
        self._restarted = [*window.within(self._restarted, now), now]
        return True

    def _delay(self) -> timedelta:
        chance = random.random()  # noqa: S311  # no secret
        wait = self._options.links.backoff.delay(self._failures, chance)
        is_elsewhere = self._options.restarts_of(self._reach) is self._options.restarts_elsewhere
        return min(wait, ASK_AFTER) if is_elsewhere else wait

    def _decide(self, ended: Ended, because: str, pause: timedelta) -> Next:
        """What follows this end; whoever calls from now on is told so."""
        restarts, now = self._options.restarts_of(self._reach), datetime.now(UTC)
        following = restarts.after(ended, self._restarted, now)
        self._last_words = tuple(self.hints())
        new = [line for line in self._last_words[-3:] if line not in because]
        because = " | ".join([because, *new])
        is_given_up = following is Next.GIVE_UP and restarts.policy is not RestartPolicy.NEVER
        if following is Next.GIVE_UP:
            remedy = f"start it with `comity servers restart {self.name}`"
            because = f"{because} ({restarts.why_not(self._restarted, now)}; {remedy})"
        self._warn(because)
        self.standing.starts_on_use = following is Next.ON_USE
        left = ended is Ended.LEFT and following is not Next.GIVE_UP
        happened = Happened.LEFT if left else Happened.FAILED
        self.happen(happened, because, is_given_up=is_given_up)
        self.standing.will_start_in(pause if following is Next.AGAIN else None)
        if following is Next.AGAIN:
            self.happen(Happened.ASKED_TO_RESTART, because)
        return following

    async def _live(self) -> tuple[Ended, str]:
        """Start, and watch until the end; gives how that came about."""
        loop, longest = asyncio.get_running_loop(), self._options.links.backoff.longest
        failure = await self._start()
        if failure is not None:
            self._failures += 1
            self.pulse.pass_on(Passed.FAILED)
            return Ended.FAILED, failure
        began = loop.time()
        await self._watch()
        # A server that dies as soon as it has started has not recovered.
        steady = loop.time() - began > longest.total_seconds()
        self._failures = 1 if steady else self._failures + 1
        return (Ended.LEFT if self.reached.left else Ended.FAILED), self.reached.why

    async def _start(self) -> str | None:
        """Connect; gives why not, if not."""
        within, loop = self._options.links.start_within, asyncio.get_running_loop()
        began, kept = loop.time(), list(self.pulse.links)
        self.standing.will_start_in(timedelta(0))
        self.happen(Happened.STARTED, self.standing.reason)
        self.pulse.pass_on(Passed.WAITED)
        self._reach.begin()
        try:
            async with asyncio.timeout(within.total_seconds()) as limit:
                await self.reached.start(Patience(limit))
        except (Unavailable, MalformedMessage) as error:
            # Whoever reads the reason knows already whose it is.
            return str(error).removeprefix(f"server {self.name!r} ")
        except TimeoutError:
            return f"not ready within {within}"
        finally:
            self._last_words = self._reach.end()
        # One of its eras may have failed on the way; that the start came to a good end counts.
        self.pulse.pass_on(Passed.WAITED)
        self.pulse.pass_on(Passed.ANSWERED)
        self.standing.start_takes = timedelta(seconds=loop.time() - began)
        self.happen(Happened.SHOOK_HANDS, "")
        self.tried.set()
        self._warned = ""
        for link in kept:
            # Whoever kept a link of his own learns that there is a server behind it again.
            link.renewed()
        return None

    async def _watch(self) -> None:
        """Until the server is gone, or is found to be."""
        if not self._options.probing.is_wanted:
            await self.reached.gone.wait()
            return
        probing = asyncio.ensure_future(self.prober.watch())
        probing.add_done_callback(lambda _: self.reached.gone.set())
        try:
            await self.reached.gone.wait()
            if probing.done():
                self._lose(probing.result())
        finally:
            probing.cancel()

    def _falter(self, because: str) -> None:
        """Something failed on the way to the server; so much of it that it is lost, or doubtful."""
        if self.standing.state is not State.CONNECTED:
            return
        if self.pulse.circuit.phase is Phase.OPEN:
            self._lose(f"calls to it fail: {because}")
        else:
            self.prober.doubt()

    def _lose(self, because: str) -> None:
        """End the gateway's own link, by which the server lives or dies."""
        shared = self.reached.own or self.reached.modern
        if shared is not None:
            shared.link.closed(because)

    def _warn(self, because: str) -> None:
        """The same failure again is no news."""
        if because != self._warned:
            log.warning("server %r: %s", self.name, because)
        self._warned = because
