"""The seven states of a server's life, as said on the wire. (MGP §11.2)"""

from enum import StrEnum


class State(StrEnum):
    REGISTERED = "registered"
    CONNECTING = "connecting"
    CONNECTED = "connected"
    DRAINING = "draining"
    DISCONNECTED = "disconnected"
    ERROR = "error"
    RESTARTING = "restarting"
