"""What servers may do after a model, in which order, and over HTTP; and all cases together."""

from dataclasses import replace
from functools import partial
from typing import Any, Final

from tests.live.hook_cases import (
    BAD,
    BULK,
    BULKS,
    CLOSED,
    ERROR,
    EXIT,
    FAKES,
    GRANTED,
    LATE,
    LOOPS,
    NEVER,
    ODD,
    RIGHTS,
    SAID,
    SECRET,
    SHAPES,
    TIMES,
    Case,
    after,
    before,
    in_order,
    raw,
    result,
    unasked,
)
from tests.live.turn_scene import LETS, TELLING, Hook, gives, injection, rewrites

REWRITINGS: Final = [
    after("lets-stand", LETS, outcome="ok"),
    after("null", rewrites(None), outcome="ok"),
    after("the-same", rewrites(SAID), outcome="ok"),
    after(
        "rewrites",
        rewrites("ODD instead of $SAID"),
        said=f"ODD instead of {SAID}",
        rewrote=("odd",),
    ),
    after("to-nothing", rewrites(""), said=None, rewrote=("odd",)),
    after("to-a-secret", rewrites(f"the key is {SECRET} ok"), rewrote=("odd",), said="the key is"),
    after("to-a-number", rewrites(7), outcome=BAD),
    after("to-a-list", rewrites(["ODD"]), outcome=BAD),
    after("to-ten-megabytes", {"do": "bulk", "bytes": BULK, "result": rewrites("$BULK")["result"]}),
    after("result-null", result(None), outcome=BAD),
    after("result-text", result("ODD"), outcome=BAD),
    after(
        "metadata-text", result({"featureSet": "x.both", "modifiedResponse": "ODD", "metadata": 1})
    ),
    after("without-grant", rewrites("ODD"), live={}, outcome="told"),
    after("without-blocking", rewrites("ODD"), hooks=TELLING, outcome="told"),
    after("without-declaring", rewrites("ODD"), hooks={"beforeInference": True}, asked=0),
    after("answers-twice", rewrites("one"), rewrites("two"), said="one", rewrote=("odd",)),
    after("set-undeclared", rewrites("ODD", "y.z"), outcome="feature_unknown"),
    after("set-disabled", rewrites("ODD", "x.off"), outcome="feature_not_enabled"),
    after("set-for-before", rewrites("ODD", "x.before"), outcome="feature_not_enabled"),
    after("set-missing", result({"modifiedResponse": "ODD"}), outcome=BAD),
    after("error", ERROR, outcome="upstream_failed"),
    after("crashes", EXIT),
    after("silent", NEVER, is_timed=True, outcome="timeout"),
    after("late", LATE, rewrites("ODD"), is_timed=True, outcome="timeout"),
]


def closed(id: str, *deeds: Any, **more: Any) -> Case:
    """What fails here lets nothing out."""
    live = more.pop("live", CLOSED)
    return after(f"closed-{id}", *deeds, live=live, said="withheld", state="withheld", **more)


GUARDED: Final = [
    after("closed-looks", rewrites("ODD"), live=CLOSED, said="ODD", rewrote=("odd",)),
    closed("error", ERROR, outcome="upstream_failed"),
    closed("crashes", EXIT),
    closed("silent", NEVER, is_timed=True, outcome="timeout"),
    closed("late", LATE, rewrites("ODD"), is_timed=True, outcome="timeout"),
    closed("set-undeclared", rewrites("ODD", "y.z"), outcome="feature_unknown"),
    closed("set-disabled", rewrites("ODD", "x.off"), outcome="feature_not_enabled"),
    closed("set-for-before", rewrites("ODD", "x.before"), outcome="feature_not_enabled"),
    closed("set-missing", result({"modifiedResponse": "ODD"}), outcome=BAD),
    closed("to-a-number", rewrites(7), outcome=BAD),
    closed("ten-megabytes", {"do": "bulk", "bytes": BULK, "result": rewrites("$BULK")["result"]}),
    closed("does-not-block", rewrites("ODD"), hooks=TELLING, asked=0, outcome="server_not_ready"),
    closed("does-not-declare", hooks={}, asked=0, outcome="server_not_ready"),
    closed(
        "not-enabled",
        rewrites("ODD"),
        live={**CLOSED, "enabled": ("x.before",)},
        asked=0,
        outcome="server_not_ready",
    ),
]

FIRST: Final = Hook("abe", (gives(),), (rewrites("$SAID, abe"),), live={**GRANTED, "order": 1})
LAST: Final = Hook("zoe", (gives(),), (rewrites("$SAID, zoe"),), live={**GRANTED, "order": 9})
ORDERS: Final = [
    Case(
        "after-one-by-one",
        Hook("odd", (gives(),), (rewrites("$SAID, odd"),), live={**GRANTED, "order": 5}),
        said=f"{SAID}, abe, odd, zoe",
        rewrote=("abe", "odd", "zoe"),
        others=(FIRST, LAST),
        misses=(),
    ),
    Case(
        "after-one-fails-amid",
        Hook("odd", (gives(),), (ERROR,), live={**GRANTED, "order": 5}),
        said=f"{SAID}, abe, zoe",
        rewrote=("abe", "zoe"),
        others=(FIRST, LAST),
        misses=(),
    ),
    Case(
        "after-a-guard-fails-amid",
        Hook("odd", (gives(),), (ERROR,), live={**CLOSED, "order": 5}),
        said="withheld",
        state="withheld",
        rewrote=("abe",),
        others=(FIRST, LAST),
        misses=(),
        check=partial(unasked, name="zoe"),
    ),
    Case(
        "before-in-order",
        Hook("odd", (gives(injection("MIDDLE")),), live={"order": 5}),
        others=(
            replace(LAST, before=(gives(injection("LAST")),), after=(LETS,)),
            replace(FIRST, before=(gives(injection("FIRST")),), after=(LETS,)),
        ),
        check=partial(in_order, parts=("FIRST", "MIDDLE", "LAST", "hello")),
    ),
]


HTTP: Final = [
    before("http-answers", ODD, is_http=True, reads=("ODD",), misses=(), outcome="ok"),
    before("http-error", ERROR, is_http=True, outcome="upstream_failed"),
    before("http-crashes", EXIT, is_http=True),
    before("http-silent", NEVER, is_http=True, is_timed=True, outcome="timeout"),
    before("http-no-json", raw("ODD {"), is_http=True),
    before("http-set-disabled", gives(injection("ODD"), feature="x.off"), is_http=True),
    before(
        "http-ten-megabytes",
        {"do": "bulk", "bytes": BULK, "result": gives(injection("ODD $BULK"))["result"]},
        is_http=True,
    ),
    after("http-rewrites", rewrites("ODD"), is_http=True, said="ODD", rewrote=("odd",)),
    after("http-crashes", EXIT, is_http=True),
    closed("http-crashes", EXIT, is_http=True),
    closed("http-silent", NEVER, is_http=True, is_timed=True, outcome="timeout"),
]

CASES: Final = [
    *SHAPES,
    *RIGHTS,
    *FAKES,
    *BULKS,
    *TIMES,
    *LOOPS,
    *REWRITINGS,
    *GUARDED,
    *ORDERS,
    *HTTP,
]
