"""The questions that are asked of a node of Python."""

import ast

from comity.validation import python_code as shapes
from tests.support.cases import loop_over


def expression(code: str) -> ast.expr:
    return ast.parse(code, mode="eval").body


def call(code: str) -> ast.Call:
    node = expression(code)
    assert isinstance(node, ast.Call)
    return node


def test_a_dotted_name_is_read_and_nothing_else() -> None:
    assert shapes.dotted_name(expression("a.b.c")) == "a.b.c"
    assert shapes.dotted_name(expression("a().b")) == ""


@loop_over("code", ["open('x')", "open('x', 'r')", "open('x', mode='rb')"])
def test_a_file_that_is_only_read_is_known(code: str) -> None:
    assert shapes.only_reads(call(code))


@loop_over("code", ["open('x', m)", "open(*a)", "open('x', 'w')", "open('x', **k)"])
def test_any_other_is_not(code: str) -> None:
    assert not shapes.only_reads(call(code))


@loop_over(
    ("text", "plain"), [("{} {0} {a!r:>5}", True), ("{:{}}", True), ("{a.b}", False), ("{", False)]
)
def test_plain_fields_are_told_from_others(text: str, plain: bool) -> None:
    assert shapes.is_plain_format(ast.Constant(text)) == plain
    assert not shapes.is_plain_format(ast.Name("x"))


def test_every_way_of_binding_a_name_is_seen() -> None:
    code = """
import a.b, c as d
def f(e, *g, h=1): pass
class i: pass
try: pass
except E as j: pass
match x:
    case [k, *l, {"m": n, **o}]: pass
for p in q: pass
(r := 1)
def s():
    global t
"""
    found = {name for node in ast.walk(ast.parse(code)) for name in shapes.bound_names(node)}
    assert found == set("adfeghijklnoprst")


def test_the_attribute_that_is_asked_for_is_read_where_it_stands() -> None:
    assert shapes.names_a_plain_attribute(call("getattr(a, 'b', 1)")) == "b"
    assert shapes.names_a_plain_attribute(call("getattr(a, 'b c')")) is None
    assert shapes.names_a_plain_attribute(call("getattr(a, n)")) is None
    assert shapes.names_a_plain_attribute(call("getattr(a)")) is None
