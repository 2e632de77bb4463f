"""What the gateway and its keeper say to each other: an order, then bytes one way, lines the other.

The keeper runs without packages, so nothing but the standard library may be named here, and of that
only what is quick to import. Both ends are the same version of the same program.

    gateway   a wish of one byte, with the line and the server's three pipes, to the keeper
              the order, then one byte for each signal to send, on the line to the guard
    guard     `started PID KIND` or `failed WHERE ERRNO`; then `ended STATUS`
    keeper    for a trial, `best KIND WHERE ERRNO`: what there is, and what stops a namespace
"""

from collections.abc import Mapping, Sequence

WISH_AUTO, WISH_GROUP, WISH_NAMESPACE, WISH_TRIAL = b"a", b"g", b"n", b"t"

# The keeper's own argument.
ADOPT = "adopt"

# How a server is held together: by the kernel, by the guard that adopts what it leaves, or by
# nothing but its process group.
NAMESPACE, REAPER, GROUP = "namespace", "reaper", "group"

# Where a start fails, or a trial is stopped.
IN_PROGRAM, IN_FOLDER = "program", "folder"
NO_LINUX, NO_NAMESPACE, NO_PROC, NOWHERE = "system", "namespace", "proc", "nowhere"

_LENGTH_BYTES = 4


class Order:
    """What to run, in bytes as the system takes them."""

    __slots__ = ("argv", "cwd", "env")

    def __init__(self, argv: list[bytes], env: dict[bytes, bytes], cwd: bytes) -> None:
        self.argv = argv
        self.env = env
        self.cwd = cwd


def pack(argv: Sequence[bytes], env: Mapping[bytes, bytes], cwd: bytes) -> bytes:
    """Raises `ValueError` for what no system could run."""
    if not argv or any(not name or b"=" in name for name in env):
        raise ValueError("no program, or a variable without a name")
    words = [cwd, b"%d" % len(argv), *argv, *(b"%s=%s" % pair for pair in env.items())]
    if any(b"\0" in word for word in words):
        raise ValueError("a NUL character")
    packed = b"\0".join(words)
    return len(packed).to_bytes(_LENGTH_BYTES) + packed


def length_of(prefix: bytes) -> int:
    return int.from_bytes(prefix[:_LENGTH_BYTES])


def unpack(packed: bytes) -> Order:
    cwd, number, *words = packed.split(b"\0")
    argv = words[: int(number)]
    pairs = (word.partition(b"=") for word in words[int(number) :])
    return Order(argv, {name: value for name, _, value in pairs}, cwd)
