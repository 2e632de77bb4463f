"""Compiles one untrusted OpenAPI document in a process of its own, with limits.

Decoding a document of 13 MB holds the interpreter for a tenth of a second. Its many objects make
each later garbage collection slow. In a process of its own, neither stops the event loop of the
gateway, and a hostile document can only end that process.
"""

from typing import Final

import msgspec

from comity.errors import MalformedMessage
from comity.servers.openapi.document import MAX_DOCUMENT_BYTES, parse_document
from comity.servers.openapi.operations import CompiledApi, compile_api
from comity.toolkit.worker_process import (
    SideProcess,
    WorkerExitCause,
    WorkerLimits,
    answer_lines,
    command_of,
)

CPU_SECONDS: Final = 20.0
WALL_SECONDS: Final = 60.0
MEMORY_BYTES: Final = 2 * 1024 * 1024 * 1024
_COMMAND: Final = command_of("comity.servers.openapi.compiler")


class CompileJob(msgspec.Struct, frozen=True):
    """A document and what is needed to compile it. `headers` are names."""

    document: bytes
    selection: tuple[str, ...] = ()
    source_url: str = ""
    headers: tuple[str, ...] = ()


class CompileAnswer(msgspec.Struct, frozen=True):
    """The compiled document, or the reason that there is none."""

    api: CompiledApi | None = None
    reason: str = ""


_jobs: Final = msgspec.json.Decoder(CompileJob)
_answers: Final = msgspec.json.Decoder(CompileAnswer)


def make_compiler() -> SideProcess:
    """Return the process for one document. Closing it ends the compilation."""
    return SideProcess(lambda: _COMMAND, "OpenAPI compiler")


def compile_apart(job: CompileJob, process: SideProcess) -> CompiledApi:
    """Compile a document in another process. Call it in a thread. Raises MalformedMessage."""
    if len(job.document) > MAX_DOCUMENT_BYTES:
        raise MalformedMessage(f"it has over {MAX_DOCUMENT_BYTES} bytes")
    try:
        (line,) = process.ask([msgspec.json.encode(job) + b"\n"])
    finally:
        process.end()
    if line is WorkerExitCause.TOO_SLOW:
        raise MalformedMessage("it takes too long to compile; choose some by `operations`")
    if isinstance(line, WorkerExitCause):
        raise MalformedMessage("it cannot be compiled within the limits of memory")
    answer = _answers.decode(line)
    if answer.api is None:
        raise MalformedMessage(answer.reason)
    return answer.api


def _answer(line: bytes) -> bytes:
    job = _jobs.decode(line)
    try:
        api = compile_api(parse_document(job.document), job.selection, job.source_url, job.headers)
    except MalformedMessage as error:
        return msgspec.json.encode(CompileAnswer(reason=str(error)))
    return msgspec.json.encode(CompileAnswer(api))


def serve_documents() -> None:
    """Read one job per line, and write one answer per line."""
    limits = WorkerLimits(2 * MAX_DOCUMENT_BYTES, CPU_SECONDS, WALL_SECONDS, MEMORY_BYTES)
    answer_lines(_answer, limits)


if __name__ == "__main__":
    serve_documents()
