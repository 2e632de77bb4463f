"""A server on pipes that passes on what it hears and says, to a port where a test plays it."""

import os
import socket
import sys
import threading


def main() -> None:
    with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as line:
        line.sendall(sys.argv[2].encode() + b"\n")
        threading.Thread(target=_heard, args=(line,), daemon=True).start()
        while piece := line.recv(65536):
            written = 0
            while written < len(piece):
                written += os.write(1, piece[written:])
    os._exit(1)


def _heard(line: socket.socket) -> None:
    while piece := os.read(0, 65536):
        line.sendall(piece)
    os._exit(0)


if __name__ == "__main__":
    main()
