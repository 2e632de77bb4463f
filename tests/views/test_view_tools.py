"""Views without a gateway: names, conflicts, overrides and fixed arguments, as tables of cases."""

import json
from typing import Any

import pytest

from comity.errors import MalformedMessage
from comity.mcp import jsonrpc
from comity.mcp.entries import CatalogEntry
from comity.mcp.protocol import public_name
from comity.views.model import MAX_VIEW_TOOLS, PrefixRule, ToolOverride, View
from comity.views.tools import assign_names, build_tool, compile_view

type Frame = dict[str, Any]

SCHEMA: Frame = {
    "type": "object",
    "properties": {
        "region": {"type": "string"},
        "amount": {"type": "number"},
        "Note-Text": {"type": "string"},
        "note_text": {"type": "string"},
    },
    "required": ["region", "amount"],
}


def entry(server: str, name: str, **members: Any) -> CatalogEntry:
    key = public_name(server, name)
    said = {"name": key, "inputSchema": SCHEMA, "description": "Pays.", **members}
    return CatalogEntry(key, server, name, json.dumps(said).encode())


PAY = entry("bank", "pay", annotations={"readOnlyHint": True, "title": "T"}, _meta={"a": 1})


def digest_of(_: CatalogEntry) -> str:
    return "abcdef0123456789"


@pytest.mark.parametrize(
    ("prefix", "tools", "renames", "names"),
    [
        ("on_conflict", ["a/read", "b/write"], {}, ["read", "write"]),
        ("on_conflict", ["a/read", "b/read", "b/x"], {}, ["a__read", "b__read", "x"]),
        ("on_conflict", ["a/read", "b/read"], {"b/read": "look"}, ["read", "look"]),
        ("on_conflict", ["a/read", "b/find"], {"b/find": "read"}, ["a__read", "read"]),
        # A name that looks like the prefixed name of another tool.
        ("on_conflict", ["a/r", "b/r", "c/a__r"], {}, ["a__r", "b__r", ""]),
        ("on_conflict", ["c/a__r", "a/r", "b/r"], {}, ["a__r", "", "b__r"]),
        ("always", ["a/read", "b/write"], {}, ["a__read", "b__write"]),
        ("always", ["a/read", "b/write"], {"b/write": "a__read"}, ["a__read", ""]),
        ("never", ["a/read", "b/read", "b/x"], {}, ["read", "", "x"]),
        ("never", ["a/read", "b/read"], {"b/read": "other"}, ["read", "other"]),
        # A name that some clients refuse becomes the public one.
        ("never", ["a/read file"], {}, [public_name("a", "read file")]),
        ("on_conflict", ["a/" + "x" * 70], {}, [public_name("a", "x" * 70)]),
        ("never", [], {}, []),
    ],
)
def test_names_follow_the_prefix_rule_and_conflicts_are_never_ambiguous(
    prefix: str, tools: list[str], renames: dict[str, str], names: list[str]
) -> None:
    entries = [entry(*each.split("/", 1)) for each in tools]
    chosen = {(key.split("/")[0], key.split("/")[1]): name for key, name in renames.items()}
    found, problems = assign_names(PrefixRule(prefix), entries, chosen)
    assert found == names
    # Each tool that is left out is reported with the name that it cannot have.
    assert len(problems) == names.count("")
    used = [name for name in found if name]
    assert len(used) == len(set(used))


@pytest.mark.parametrize(
    ("override", "changed"),
    [
        ({}, {}),
        ({"title": "Pay"}, {"title": "Pay"}),
        ({"description": "Pays in the EU."}, {"description": "Pays in the EU."}),
        (
            {"annotations": {"readOnlyHint": False, "destructiveHint": True}},
            {"annotations": {"readOnlyHint": False, "title": "T", "destructiveHint": True}},
        ),
        (
            {"arguments": {"region": "eu"}},
            {
                "inputSchema": {
                    **SCHEMA,
                    "properties": {k: v for k, v in SCHEMA["properties"].items() if k != "region"},
                    "required": ["amount"],
                }
            },
        ),
        (
            {"defaults": {"amount": 5}, "arguments": {"region": "eu"}},
            {
                "inputSchema": {
                    "type": "object",
                    "properties": {
                        "amount": {"type": "number", "default": 5},
                        "Note-Text": {"type": "string"},
                        "note_text": {"type": "string"},
                    },
                }
            },
        ),
    ],
)
def test_an_override_changes_only_what_it_names(override: Frame, changed: Frame) -> None:
    tool = build_tool(PAY, "pay", ToolOverride("bank", "pay", **override), digest_of)
    before = {**json.loads(PAY.definition), "name": "pay"}
    assert json.loads(tool.listed.definition) == {**before, **changed}
    assert (tool.withheld, tool.drift) == ("", ())


@pytest.mark.parametrize(
    ("override", "withheld", "drift"),
    [
        ({"definition": "abcdef012345"}, "", ""),
        ({"definition": "0123456789ab"}, "", "has changed"),
        ({"defaults": {"gone": 1}}, "", "no argument 'gone', for which"),
        ({"arguments": {"gone": 1}}, "no argument 'gone', which the view fixes", ""),
    ],
)
def test_drift_is_reported_and_a_vanished_fixed_argument_withholds_the_tool(
    override: Frame, withheld: str, drift: str
) -> None:
    view = View("payments", overrides=(ToolOverride("bank", "pay", **override),))
    compiled = compile_view(
        view, [PAY], lambda entry, name, change: build_tool(entry, name, change, digest_of)
    )
    (tool,) = compiled.tools
    assert withheld in tool.withheld
    assert bool(tool.withheld) == bool(withheld)
    assert drift in " ".join(tool.drift)
    assert bool(compiled.by_name) != bool(withheld)
    assert bool(compiled.problems) == bool(withheld or drift)


def test_a_view_reports_missing_tools_and_serves_a_bounded_number() -> None:
    view = View("big", select=("a/*",), overrides=(ToolOverride("a", "none"),))
    entries = [entry("a", f"tool-{number:04}") for number in range(MAX_VIEW_TOOLS + 5)]
    compiled = compile_view(view, entries, lambda e, n, o: build_tool(e, n, o, digest_of))
    assert len(compiled.tools) == MAX_VIEW_TOOLS
    assert [said.partition(":")[0] for said in compiled.problems] == [
        "a/none",
        f"{len(entries)} tools are selected; only the first {MAX_VIEW_TOOLS} are served",
    ]


@pytest.mark.parametrize(
    "definition",
    [
        b'{"name":"x","name":"y"}',
        b'{"name":"x","inputSchema":{"properties":{"a":1,"a":2}}}',
        b'{"name":"x","inputSchema":[]}',
        b'{"name":"x","inputSchema":{"properties":[],"required":[{}]}}',
        b"[]",
        b"",
    ],
)
def test_a_definition_that_cannot_be_read_is_withheld_with_its_override(definition: bytes) -> None:
    hostile = CatalogEntry("bank__pay", "bank", "pay", definition)
    override = ToolOverride("bank", "pay", arguments={"region": "eu"})
    assert build_tool(hostile, "pay", override, digest_of).withheld


FIXED = build_tool(
    PAY,
    "pay",
    ToolOverride("bank", "pay", arguments={"region": "eu"}, defaults={"amount": 5}),
    digest_of,
)


def outgoing_call(frame: jsonrpc.Frame) -> jsonrpc.Frame:
    assert FIXED.rewrite is not None
    return FIXED.rewrite.apply(frame, FIXED.entry.name)


def call(arguments: str, more: str = "") -> jsonrpc.Frame:
    said = '"name":"pay"' + (f',"arguments":{arguments}' if arguments else "") + more
    text = f'{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{{said}}}}}'
    return jsonrpc.decode_frame(text.encode())


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ("", '{"amount":5,"region":"eu"}'),
        ("{}", '{"amount":5,"region":"eu"}'),
        ('{"amount":7}', '{"amount":7,"region":"eu"}'),
        # The client's own spelling of a value stays as it is.
        ('{"amount":1.10000000000000000001}', '{"amount":1.10000000000000000001,"region":"eu"}'),
        ('{"\\u0061mount":7}', '{"amount":7,"region":"eu"}'),
        ('{"note_text":"a","Note-Text":"b"}', None),
        ('{"other":1}', None),
        # A fixed name inside of another value is not the argument.
        ('{"note_text":{"region":"us"}}', None),
    ],
)
@pytest.mark.parametrize("more", ["", ',"task":{"ttl":1}'])
def test_fixed_and_default_arguments_are_set(given: str, sent: str | None, more: str) -> None:
    outgoing = outgoing_call(call(given, more))
    assert outgoing.arguments["region"] == "eu"
    params = outgoing.parameters
    assert json.loads(bytes(params["name"])) == "pay"
    if sent is not None:
        assert bytes(params["arguments"]).decode() == sent
    assert ("task" in params) == bool(more)


@pytest.mark.parametrize(
    "given",
    [
        '{"region":"us"}',
        '{"region":"eu"}',
        '{"region":null}',
        '{"regi\\u006fn":"us"}',
        '{"Region":"us"}',
        '{"REGION":"us"}',
        '{"re_gion":"us"}',
        '{"re-gion":"us"}',
        '{"re gion":"us"}',
        '{"_region_":"us"}',
        '{"region ":"us"}',
        '{"region\\u200b":"us"}',
        '{"regi\\u00adon":"us"}',
        '{"\\uff52egion":"us"}',
        '{"reg\\u0131on":"us"}',
        '{"regi\\u043en":"us"}',
        '{"r\\u00e9gion":"us"}',
        '{"region\\u0000":"us"}',
        '{"amount":1,"region":"us"}',
        '{"region":"us","region":"eu"}',
        '{"amount":1,"amount":2}',
        '{"' + "-" * 200 + 'region":"us"}',
        "{" + ",".join(f'"x{n}":1' for n in range(300)) + "}",
        "[]",
        '"text"',
        "null",
    ],
)
@pytest.mark.parametrize("more", ["", ',"task":{"ttl":1}'])
def test_a_fixed_argument_cannot_be_overridden_by_any_spelling(given: str, more: str) -> None:
    with pytest.raises(MalformedMessage) as refused:
        outgoing_call(call(given, more))
    assert refused.value.fault.code == -32602


@pytest.mark.parametrize(
    "more", ['"Arguments":{"region":"us"}', '"argument\\u017f":{}', '"NAME":"x"']
)
def test_a_parameter_that_shadows_the_arguments_is_refused(more: str) -> None:
    with pytest.raises(MalformedMessage, match="shadows"):
        outgoing_call(call('{"amount":1}', f",{more}"))
