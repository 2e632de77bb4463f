"""Many calls, one stream: what each call has to say goes straight onto its client's only stream."""

from comity.kernel.outbox import Outbox


class Funnel:
    """The one stream of a client, and the inlets through which its calls flow into it."""

    __slots__ = ("_inlets", "outbox", "paused")

    def __init__(self, outbox: Outbox) -> None:
        self.outbox = outbox
        self.paused = False
        self._inlets: set[Inlet] = set()
        outbox.throttle = self._throttle

    def __len__(self) -> int:
        return len(self._inlets)

    def inlet(self) -> "Inlet":
        inlet = Inlet(self)
        self._inlets.add(inlet)
        return inlet

    def leave(self, inlet: "Inlet") -> None:
        self._inlets.discard(inlet)

    def _throttle(self, paused: bool) -> None:
        """Whoever waits for the reader waits for all of it, so every source is asked to pause."""
        self.paused = paused
        for inlet in list(self._inlets):
            inlet.hold(paused)


class Inlet(Outbox):
    """A call's outbox that keeps nothing: the bounds are those of the stream it leads to.

    An answer needs room like anything else here. Without it the whole stream has overrun.
    """

    __slots__ = ("_funnel",)

    def __init__(self, funnel: Funnel) -> None:
        super().__init__()
        self._funnel = funnel

    def put(self, data: bytes) -> bool:
        if self.final:
            return False
        if not self._funnel.outbox.put(data):
            self.overrun = self._funnel.outbox.overrun
            self.end()
            return False
        self.hold(self._funnel.paused)
        return True

    def finish(self, data: bytes, status: int = 200) -> None:
        if not self.final:
            self._funnel.outbox.put(data)
            self.status = status
            self.end()

    def end(self) -> None:
        super().end()
        self._funnel.leave(self)

    def hold(self, paused: bool) -> None:
        self._throttle(paused)
