"""How surely the servers' processes can be held together here, in words for the operator."""

import errno
import os
from dataclasses import dataclass

from comity.adapters.upstream import orders
from comity.adapters.upstream.keeping import ask
from comity.wire.errors import Unavailable

_PROMISES = {
    orders.REAPER: "whatever a server started ends with it and with the gateway, also what forked "
    "twice or began a session of its own",
    orders.GROUP: "what stays in a server's process group ends with it and with the gateway; what "
    "leaves the group, as a daemon does, is not ended",
}
_INSTEAD = (
    "a server that starts daemons should be told to stay in the foreground, or the gateway be run "
    "on Linux"
)


@dataclass(frozen=True, slots=True)
class Allowance:
    """What the machine allows: `kind` is what `auto` takes, `promise` what that ends."""

    kind: str
    promise: str
    # Both empty where there is nothing to say.
    why_no_namespace: str
    what_to_do: str

    @property
    def ends_daemons(self) -> bool:
        return self.kind != orders.GROUP


async def what_this_machine_allows() -> Allowance:
    """Found out by trying, each time anew; it takes a few hundredths of a second."""
    line = ask(orders.WISH_TRIAL, ())
    try:
        answer = await line.answer()
    finally:
        line.close()
    if answer[:1] != ["best"]:
        raise Unavailable("the process that was to find out what this machine allows is gone")
    _, kind, where, number = answer
    why = "" if where == orders.NOWHERE else why_no_namespace(where, int(number))
    return Allowance(kind, _PROMISES[kind], why, _INSTEAD if kind == orders.GROUP else "")


def why_no_namespace(where: str, number: int) -> str:
    """Why `containment = "namespace"` cannot be had, and what to do about it."""
    if where == orders.NO_LINUX:
        return "pid namespaces are Linux's own; run the gateway there"
    if where == orders.NO_PROC:
        return (
            f"a pid namespace needs a /proc of its own, which cannot be mounted "
            f"({os.strerror(number)}); allow `mount` in the container's or the service's profile"
        )
    if number == errno.EPERM:
        return (
            "a pid namespace needs the capability CAP_SYS_ADMIN; run the gateway as root, or give "
            "it to its container or its service"
        )
    if number == errno.ENOSPC:
        return "the limit of pid namespaces is reached; raise `user.max_pid_namespaces` with sysctl"
    return f"the kernel refuses pid namespaces ({os.strerror(number)})"
