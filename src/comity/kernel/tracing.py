"""The trace that a client's transport names, handed on to the server as it was.

This is all that is done about traces where no tracer is joined. What a client says in `_meta` goes
on with the request anyway; only a header has to be carried, and no other header of its is.
"""

from collections.abc import Mapping

from comity.ports import Ending, Headers
from comity.wire import traces
from comity.wire.jsonrpc import Frame
from comity.wire.traces import Context


class PassedOn:
    """A place in a trace that only a header named."""

    __slots__ = ("context",)

    def __init__(self, context: Context) -> None:
        self.context: Context = context

    def onward(
        self, frame: Frame, headers: Headers, server: str, in_headers: bool
    ) -> tuple[Frame, Headers]:
        if in_headers:
            return frame, (*headers, *self.context.headers)
        if traces.from_params(frame.params) is not None:
            return frame, headers
        return traces.with_context(frame, self.context), headers

    def ended(self, ending: Ending) -> None:
        """Nobody here keeps a record of it."""


def named_in(headers: Mapping[bytes, bytes]) -> PassedOn | None:
    context = traces.from_headers(headers)
    return None if context is None else PassedOn(context)
