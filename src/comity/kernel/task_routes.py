"""Tasks at the door of all servers: under public names, at the server that began them."""

import msgspec

from comity.kernel.call import Call
from comity.kernel.links import Link
from comity.kernel.servers import Server
from comity.rules import tasks
from comity.wire import jsonrpc
from comity.wire.errors import METHOD_NOT_FOUND, MalformedMessage
from comity.wire.jsonrpc import UNSET, Frame
from comity.wire.mcp import Era


def publish(call: Call, server: str, names: tasks.TaskNames) -> None:
    """Name a task to the client in public form, in the answer and in all that is said before it."""

    def public(task: str) -> str:
        return names.public(call.outbox.actor.party, server, task)

    def published(frame: Frame) -> Frame:
        if frame.result is UNSET:
            return frame
        return msgspec.structs.replace(frame, result=tasks.rename(frame.result, public))

    def retell(frame: Frame) -> Frame:
        if frame.params is UNSET or bytes(memoryview(frame.params)[:1]) != b"{":
            return frame
        return jsonrpc.with_params(frame, tasks.rename(frame.params, public))

    call.adapt, call.retell = published, retell


async def modern_link(server: Server) -> Link:
    if Era.MODERN not in server.reached.eras:
        raise MalformedMessage("this server has no tasks of this era", METHOD_NOT_FOUND)
    return server.reached.modern_link()
