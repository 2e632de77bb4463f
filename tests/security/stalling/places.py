"""Where in a message a hostile value can stand, by name: of a client's, and of a server's.

`%b` is the value's place, and `@id@` that of the id which a server has to answer.
"""

from typing import Final

VALUE: Final = b"%b"
_CALL: Final = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":@}'
_ASK: Final = b'{"jsonrpc":"2.0","id":1,"method":"@","params":{"#":%b}}'
_ANSWER: Final = b'{"jsonrpc":"2.0","id":@id@,"result":@}'
_REFUSAL: Final = b'{"jsonrpc":"2.0","id":@id@,"error":@}'
_NOTICE: Final = b'{"jsonrpc":"2.0","method":"notifications/@","params":#}'


def _called(params: bytes) -> bytes:
    return _CALL.replace(b"@", params)


def _asked(method: bytes, member: bytes) -> bytes:
    return _ASK.replace(b"@", method).replace(b"#", member)


def _answered(result: bytes) -> bytes:
    return _ANSWER.replace(b":@}", b":" + result + b"}")


def _refused(error: bytes) -> bytes:
    return _REFUSAL.replace(b":@}", b":" + error + b"}")


def _told(what: bytes, params: bytes) -> bytes:
    return _NOTICE.replace(b"@", what).replace(b"#", params)


CLIENT: Final = {
    "an argument": _called(b'{"name":"TOOL","arguments":{"a":%b}}'),
    "the arguments": _called(b'{"name":"TOOL","arguments":%b}'),
    "the tool's name": _called(b'{"name":%b}'),
    "the parameters": _called(b"%b"),
    "_meta": _called(b'{"name":"TOOL","_meta":%b}'),
    "the progress token": _called(b'{"name":"TOOL","_meta":{"progressToken":%b}}'),
    "the trace": _called(b'{"name":"TOOL","_meta":{"traceparent":%b}}'),
    "an unknown member": b'{"jsonrpc":"2.0","id":1,"method":"tools/list","x":%b}',
    "the credentials": b'{"jsonrpc":"2.0","id":1,"method":"tools/list","auth":%b}',
    "the token": (b'{"jsonrpc":"2.0","id":1,"method":"ping","auth":{"type":"bearer","token":%b}}'),
    "a URI": _asked(b"resources/read", b"uri"),
    "a reference": _asked(b"completion/complete", b"ref"),
    "a level": _asked(b"logging/setLevel", b"level"),
    "a cursor": _asked(b"tools/list", b"cursor"),
    "a prompt": _asked(b"prompts/get", b"name"),
    "a task": _asked(b"tasks/get", b"taskId"),
    "an unknown method": _asked(b"no/such", b"x"),
    "MGP's filter": _asked(b"mgp/tools/discover", b"filter"),
    "a withdrawn request": _told(b"cancelled", b'{"requestId":%b}'),
    "an answer": b'{"jsonrpc":"2.0","id":"q","result":%b}',
    "a refusal": b'{"jsonrpc":"2.0","id":"q","error":%b}',
    "capabilities": (
        b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25",'
        b'"clientInfo":{"name":"x","version":"1"},"capabilities":%b}}'
    ),
}


def _modern(params: bytes, inside: bytes = b"") -> bytes:
    meta = (
        b'"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",'
        b'"io.modelcontextprotocol/clientCapabilities":{}' + inside + b"}"
    )
    return _called(b"{" + params + b"," + meta + b"}")


MODERN: Final = {
    "an argument": _modern(b'"name":"TOOL","arguments":{"a":%b}'),
    "the arguments": _modern(b'"name":"TOOL","arguments":%b'),
    "the tool's name": _modern(b'"name":%b'),
    "beside the parameters": _modern(b'"name":"TOOL","x":%b'),
    "in _meta": _modern(b'"name":"TOOL"', b',"x":%b'),
    "the trace": _modern(b'"name":"TOOL"', b',"traceparent":%b'),
    "an unknown member": _modern(b'"name":"TOOL"')[:-1] + b',"x":%b}',
    "the answers to questions": _modern(b'"name":"TOOL","inputResponses":%b'),
    "the state": _modern(b'"name":"TOOL","requestState":%b'),
}

SERVER: Final = {
    "the result": _answered(b"%b"),
    "the content": _answered(b'{"content":%b}'),
    "a block of it": _answered(b'{"content":[%b]}'),
    "its text": _answered(b'{"content":[{"type":"text","text":%b}]}'),
    "structured content": _answered(b'{"content":[],"structuredContent":{"a":%b}}'),
    "the kind of result": _answered(b'{"content":[],"resultType":%b}'),
    "whether it failed": _answered(b'{"content":[],"isError":%b}'),
    "_meta of a result": _answered(b'{"content":[],"_meta":%b}'),
    "the questions": _answered(b'{"resultType":"input_required","inputRequests":%b}'),
    "a task": _answered(b'{"task":%b}'),
    "the error": _refused(b"%b"),
    "its data": _refused(b'{"code":-32000,"message":"no","data":%b}'),
    "its recovery": _refused(b'{"code":-32000,"message":"no","data":{"_mgp":%b}}'),
    "its message": _refused(b'{"code":-32000,"message":%b}'),
    "its code": _refused(b'{"code":%b,"message":"no"}'),
    "the pages to open": _refused(b'{"code":-32042,"message":"no","data":{"elicitations":%b}}'),
    "an id": b'{"jsonrpc":"2.0","id":%b,"result":{}}',
    "how far it is": _told(b"progress", b'{"progressToken":@id@,"progress":1,"message":%b}'),
    "a progress token": _told(b"progress", b'{"progressToken":%b,"progress":1}'),
    "a number of progress": _told(b"progress", b'{"progressToken":@id@,"progress":%b}'),
    "a line of its log": _told(b"message", b'{"level":"info","data":%b}'),
    "a changed resource": _told(b"resources/updated", b'{"uri":%b}'),
    "a withdrawn question": _told(b"cancelled", b'{"requestId":%b}'),
    "an audit event": _told(b"mgp.audit", b"%b"),
    "an event": _told(b"mgp.event", b'{"channel":"c","data":%b}'),
    "a chunk": _told(b"mgp.stream.chunk", b'{"request_id":@id@,"index":0,"content":%b}'),
    "a question to a person": (
        b'{"jsonrpc":"2.0","id":7,"method":"elicitation/create",'
        b'"params":{"message":"m","requestedSchema":%b}}'
    ),
    "a question to a model": (
        b'{"jsonrpc":"2.0","id":7,"method":"sampling/createMessage",'
        b'"params":{"maxTokens":1,"messages":%b}}'
    ),
    "a question after roots": b'{"jsonrpc":"2.0","id":7,"method":"roots/list","params":%b}',
}

LISTS: Final = {
    "the list": _answered(b'{"tools":%b}'),
    "an entry": _answered(b'{"tools":[%b]}'),
    "a schema": _answered(b'{"tools":[{"name":"t","inputSchema":%b}]}'),
    "an output schema": _answered(
        b'{"tools":[{"name":"t","inputSchema":{"type":"object"},"outputSchema":%b}]}'
    ),
    "a property": _answered(
        b'{"tools":[{"name":"t","inputSchema":{"type":"object","properties":%b}}]}'
    ),
    "a name": _answered(b'{"tools":[{"name":%b,"inputSchema":{"type":"object"}}]}'),
    "a description": _answered(
        b'{"tools":[{"name":"t","inputSchema":{"type":"object"},"description":%b}]}'
    ),
    "annotations": _answered(
        b'{"tools":[{"name":"t","inputSchema":{"type":"object"},"annotations":%b}]}'
    ),
    "_meta of a tool": _answered(
        b'{"tools":[{"name":"t","inputSchema":{"type":"object"},"_meta":%b}]}'
    ),
    "what is beside it": _answered(
        b'{"tools":[{"name":"t","inputSchema":{"type":"object"},"x":%b}]}'
    ),
    "a cursor": _answered(b'{"tools":[],"nextCursor":%b}'),
}
