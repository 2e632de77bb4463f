"""The sample servers of `comity demo`. Nothing that they say is real, and they keep no data.

`python -m comity.app.demo.servers NAME` runs one of them on stdin and stdout.
"""

import itertools
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from threading import Thread
from typing import Any, Final, TextIO, override
from uuid import uuid4

from comity.live.channels.model import LIST as LIST_CHANNELS
from comity.live.channels.model import REGISTER
from comity.live.hooks.model import AFTER, BEFORE, InjectionPosition
from comity.live.pushes.model import PUSH
from comity.live.state.model import CHECKPOINT_MIRROR, ROLLBACK
from comity.mcp import mcpl, protocol
from comity.mcp.mcpl import STATE_MIRROR, FeatureUse
from comity.sdk.module_server import Frame, StdioToolServer, text_result

CRASH_INTERVAL: Final = 12
"""After this many quotes the flaky server crashes, so that a restart can be seen."""

CRASH_STATUS: Final = 3
REPORT_STEPS: Final = 6
STEP_SECONDS: Final = 0.7
_TEXT: Final[Frame] = {"type": "string"}
_NUMBER: Final[Frame] = {"type": "number", "minimum": 0}


def _tool(name: str, about: str, takes: Frame, *, effect: str = "readOnlyHint") -> Frame:
    schema = {
        "type": "object",
        "properties": takes,
        "required": list(takes),
        "additionalProperties": False,
    }
    hints = {effect: True, "openWorldHint": False}
    return {"name": name, "description": about, "inputSchema": schema, "annotations": hints}


class SampleServer(StdioToolServer):
    """One of the sample servers."""

    definitions: tuple[Frame, ...] = ()
    # The seconds that calls take, in turn, so that plots show a spread.
    delays: tuple[float, ...] = (0.0,)

    def __init__(self, reader: TextIO, writer: TextIO) -> None:
        super().__init__(reader, writer)
        self._delays = itertools.cycle(self.delays)

    @override
    def tools(self) -> list[Frame]:
        return list(self.definitions)

    @override
    def call(self, name: str, arguments: Frame, meta: Frame) -> Frame | None:
        time.sleep(next(self._delays))
        return self.run_tool(name, arguments, meta)

    def run_tool(self, name: str, arguments: Frame, meta: Frame) -> Frame | None:
        """The result of a tool; None if there is no such tool."""
        return None


class NotesServer(SampleServer):
    """Notes that live as long as the process."""

    name = "demo-notes"
    delays = (0.004, 0.012, 0.15, 0.03, 0.006)
    definitions = (
        _tool("search_notes", "Finds notes that contain a word.", {"word": _TEXT}),
        _tool("read_note", "Returns the text of a note.", {"title": _TEXT}),
        _tool(
            "delete_note",
            "Deletes a note.",
            {"title": _TEXT},
            effect="destructiveHint",
        ),
    )
    _notes: Final = {
        "Roadmap": "Ship the console, then the demo.",
        "Refund policy": "Refunds up to 100 EUR need one approval.",
        "Meeting": "Invoices of October are due on Friday.",
    }

    @override
    def run_tool(self, name: str, arguments: Frame, meta: Frame) -> Frame | None:
        title = str(arguments.get("title", ""))
        if name == "search_notes":
            word = str(arguments.get("word", "")).casefold()
            found = [
                each
                for each, text in self._notes.items()
                if word in text.casefold() or word in each.casefold()
            ]
            return text_result("\n".join(found) or "no note contains it")
        if name == "read_note":
            text = self._notes.get(title)
            return text_result(text or "there is no such note", is_error=text is None)
        return text_result(f"deleted {title}") if name == "delete_note" else None


class PaymentsServer(SampleServer):
    """Payments, of which one tool moves money."""

    name = "demo-payments"
    delays = (0.03, 0.09, 0.5, 0.05)
    definitions = (
        _tool("list_invoices", "Lists the open invoices.", {}),
        _tool(
            "refund",
            "Refunds an order. The money cannot be had back.",
            {"order": _TEXT, "amount": _NUMBER, "currency": {"enum": ["EUR", "USD"]}},
            effect="destructiveHint",
        ),
    )

    @override
    def run_tool(self, name: str, arguments: Frame, meta: Frame) -> Frame | None:
        if name == "list_invoices":
            return text_result("A-1041 120 EUR\nA-1042 40 EUR")
        if name != "refund":
            return None
        amount = f"{arguments['amount']:g} {arguments['currency']}"
        return text_result(f"refunded {amount} for order {arguments['order']}")


class ReportsServer(SampleServer):
    """Slow reports that tell their progress."""

    name = "demo-reports"
    definitions = (_tool("monthly_report", "Computes the report of a month.", {"month": _TEXT}),)

    @override
    def run_tool(self, name: str, arguments: Frame, meta: Frame) -> Frame | None:
        if name != "monthly_report":
            return None
        for step in range(1, REPORT_STEPS + 1):
            time.sleep(STEP_SECONDS)
            if "progressToken" in meta:
                told = {"progress": step, "total": REPORT_STEPS, "message": f"part {step}"}
                params = {"progressToken": meta["progressToken"], **told}
                self.say({"method": protocol.PROGRESS, "params": params})
        return text_result(f"The report of {arguments['month']} has {REPORT_STEPS} parts.")


class FlakyServer(SampleServer):
    """Quotes, until it crashes."""

    name = "demo-flaky"
    delays = (0.08, 1.2, 0.3)
    definitions = (_tool("quote", "Returns the price of an item.", {"item": _TEXT}),)
    _calls: Iterator[int] = itertools.count(1)

    @override
    def run_tool(self, name: str, arguments: Frame, meta: Frame) -> Frame | None:
        if name != "quote":
            return None
        if next(self._calls) % CRASH_INTERVAL == 0:
            sys.stderr.write("the sample server crashes on purpose\n")
            sys.stderr.flush()
            # Other threads would go on after an exception in this one.
            os._exit(CRASH_STATUS)
        return text_result(f"{arguments['item']}: 12 EUR")


class OrdersServer(SampleServer):
    """A live server: it pushes events, takes part in turns and keeps its state in the gateway."""

    name = "demo-orders"
    delays = (0.02, 0.2, 0.06)
    definitions = (
        {
            **_tool("plan_stop", "Adds a stop to the delivery plan.", {"stop": _TEXT}),
            "_meta": {"featureSet": "orders.plan"},
        },
    )

    @override
    def capabilities(self) -> Frame:
        declared = {
            "version": mcpl.VERSION,
            "pushEvents": True,
            "contextHooks": {"beforeInference": True, "afterInference": {"blocking": True}},
            "channels": {"register": True, "observe": True},
            "featureSets": LIVE_FEATURES,
        }
        return {**super().capabilities(), "experimental": {mcpl.KEY: declared}}

    @override
    def notified(self, frame: Frame) -> None:
        if frame["method"] == mcpl.UPDATE and not self._is_live:
            self._is_live = True
            Thread(target=self._push_events, daemon=True).start()

    _is_live = False

    @override
    def respond(self, method: str, params: Frame) -> Frame | None:
        if method == BEFORE:
            injection = {
                "namespace": "history",
                "position": InjectionPosition.BEFORE_USER,
                "content": "Order A-1042: a lamp, 40 EUR, returned, customer ana@example.org.",
            }
            return {"featureSet": "orders.history", "contextInjections": [injection]}
        if method == AFTER:
            text = str(params.get("assistantMessage", ""))
            hidden = _MAIL_ADDRESS.sub("[address removed]", text)
            changed = {} if hidden == text else {"modifiedResponse": hidden}
            return {"featureSet": "orders.privacy", **changed}
        if method == LIST_CHANNELS:
            return {"channels": [_CHANNEL]}
        if method == ROLLBACK:
            return {"checkpoint": params.get("checkpoint"), "success": True}
        return None

    @override
    def run_tool(self, name: str, arguments: Frame, meta: Frame) -> Frame | None:
        if name != "plan_stop":
            return None
        # The gateway keeps the state, and sends it with each call.
        before: Mapping[str, Any] = meta.get(STATE_MIRROR) or {}
        stops = [*before.get("stops", ()), arguments["stop"]][-MAX_STOPS:]
        state = {
            "checkpoint": f"plan-{uuid4().hex[:6]}",
            "parent": meta.get(CHECKPOINT_MIRROR),
            "data": {"stops": stops},
        }
        return {**text_result(f"The plan has {len(stops)} stops."), "state": state}

    def _push_events(self) -> None:
        self.say({"id": "channels", "method": REGISTER, "params": {"channels": [_CHANNEL]}})
        for count, item in enumerate(itertools.cycle(RETURNED_ITEMS)):
            # The operator has not enabled `orders.export`, so Comity refuses its events.
            is_export = count % EXPORT_INTERVAL == EXPORT_INTERVAL - 1
            event = f"return-{uuid4().hex[:8]}"
            text = f"The {item} of order A-{1043 + count % 40} came back."
            params = {
                "featureSet": "orders.export" if is_export else "orders.returns",
                "eventId": event,
                "timestamp": datetime.now(UTC).isoformat(),
                "origin": {"item": item},
                "payload": {"content": [{"type": "text", "text": text}]},
            }
            self.say({"id": event, "method": PUSH, "params": params})
            time.sleep(PUSH_SECONDS)


MAX_STOPS: Final = 20
PUSH_SECONDS: Final = 8.0
EXPORT_INTERVAL: Final = 4
RETURNED_ITEMS: Final = ("lamp", "desk", "chair")
_MAIL_ADDRESS: Final = re.compile(r"[\w.+-]+@[\w-]+(\.[\w-]+)+")
_CHANNEL: Final[Frame] = {
    "id": "mail:support",
    "type": "mail",
    "label": "Support mail",
    "direction": "inbound",
}
LIVE_FEATURES: Final[Mapping[str, Frame]] = {
    "orders.returns": {
        "description": "Pushes an event for each returned order.",
        "uses": [FeatureUse.PUSH],
    },
    "orders.history": {
        "description": "Adds what is known about an order to a question.",
        "uses": [FeatureUse.BEFORE],
    },
    "orders.privacy": {
        "description": "Removes mail addresses from answers.",
        "uses": [FeatureUse.AFTER],
    },
    "orders.plan": {
        "description": "Keeps the delivery plan.",
        "uses": [FeatureUse.TOOLS],
        "rollback": True,
    },
    "orders.mail": {
        "description": "Reads the mail of customers.",
        "uses": [FeatureUse.OBSERVE],
    },
    "orders.export": {
        "description": "Sends orders to other programs.",
        "uses": [FeatureUse.PUSH],
    },
}
"""The feature sets of the live server. The configuration enables all but the last."""

SERVERS: Final[dict[str, type[SampleServer]]] = {
    "notes": NotesServer,
    "payments": PaymentsServer,
    "reports": ReportsServer,
    "flaky": FlakyServer,
    "orders": OrdersServer,
}

RISKS: Final[dict[str, dict[str, str]]] = {
    "notes": {"search_notes": "safe", "read_note": "safe", "delete_note": "dangerous"},
    "payments": {"list_invoices": "safe", "refund": "dangerous"},
    "reports": {"monthly_report": "safe"},
    "flaky": {"quote": "safe"},
    "orders": {"plan_stop": "safe"},
}
"""The risk of each tool, for the configuration."""

if __name__ == "__main__":
    SERVERS[sys.argv[1]](sys.stdin, sys.stdout).serve()
