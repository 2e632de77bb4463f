"""Prints the modules and functions that one warm `tools/call` passes in a gateway.

The gateway runs in a thread of this process before the example server, and its calls are
recorded with `sys.setprofile`. Times mean nothing under a profiler, so none are printed.
"""

import sys
import tempfile
import threading
from collections import Counter
from datetime import timedelta
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

from comity.app.local_gateway import temporary_gateway
from comity.app.settings_reader import ConfigSource
from comity.cli.mcp_client import CliMcpSession

WARM_CALLS: Final = 20
SOURCE: Final = str(Path(sys.modules["comity"].__file__ or "").parent) + "/"
CONFIG: Final = """
[[servers]]
id = "example"
command = {python!r}
args = ["-m", "comity.cli", "example"]
"""


class CallRecorder:
    """Counts the functions of Comity that run while it is on."""

    def __init__(self) -> None:
        self.is_on = False
        self.functions: Counter[CodeType] = Counter()

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if self.is_on and event == "call" and frame.f_code.co_filename.startswith(SOURCE):
            self.functions[frame.f_code] += 1

    def modules(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for code, times in self.functions.items():
            found[code.co_filename.removeprefix(SOURCE)] += times
        return found


def record_call() -> CallRecorder:
    recorder = CallRecorder()
    # Threads that begin after this, as the gateway's own, are profiled from their start.
    threading.setprofile(recorder)
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "comity.toml")
        config.write_text(CONFIG.format(python=sys.executable), encoding="utf-8")
        settings = ConfigSource(Path(folder), Path(folder), {}, config).load().settings
        with (
            temporary_gateway(settings, lambda _: True) as gateway,
            CliMcpSession(gateway, timedelta(seconds=60), _ignore, _refuse) as session,
        ):
            wanted = {"name": "example__echo", "arguments": {"message": "hello"}}
            for _ in range(WARM_CALLS):
                session.request("tools/call", wanted)
            recorder.is_on = True
            answer = session.request("tools/call", wanted)
            recorder.is_on = False
    threading.setprofile(None)
    if "result" not in answer:
        raise SystemExit(f"the call failed: {answer}")
    return recorder


def _ignore(_method: str, _params: dict[str, Any]) -> None:
    """The example reports nothing that matters here."""


def _refuse(_frame: dict[str, Any]) -> None:
    """The tool asks nothing."""


def main() -> None:
    recorder = record_call()
    modules = recorder.modules()
    for module, times in sorted(modules.items(), key=lambda each: (-each[1], each[0])):
        print(f"{times:5} {module}")
    calls, functions = sum(recorder.functions.values()), len(recorder.functions)
    print(f"{calls} calls of {functions} functions in {len(modules)} modules")


if __name__ == "__main__":
    main()
