"""What of a Python text is refused: every node is looked at, and what is not known is refused.

Nothing here proves code harmless: it keeps honest code tidy and makes dishonest code conspicuous.
What runs it has to hold it. Names are compared after Python's own normalisation, since the parser
has done it already; strings matter only where Python itself would read them as code or names.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from comity.rules import python_lists as lists
from comity.rules.python_shapes import (
    bindings,
    dotted,
    has_keyword,
    has_one_value,
    is_known_dunder,
    is_plain_format,
    is_super_init,
    names_a_plain_attribute,
    only_reads,
)

MOST_NODES: Final = 50_000
_TYPE_PARAMETERS: Final = ("TypeAlias", "TypeVar", "ParamSpec", "TypeVarTuple", "TemplateStr")
_KNOWN: Final = tuple(
    kind
    for kind in vars(ast).values()
    if isinstance(kind, type)
    and issubclass(kind, ast.AST)
    and kind.__name__ not in _TYPE_PARAMETERS
)

type _Named = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True, slots=True)
class Permits:
    """What is let through: `allowed` modules alone where it is not None, and never `blocked` ones.

    `trusted` modules are an operator's own, of which no list of attributes is known.
    """

    is_strict: bool
    only_reads: bool
    allowed: frozenset[str] | None
    blocked: frozenset[str]
    trusted: frozenset[str] = frozenset()

    def module_problem(self, module: str) -> str | None:
        parts = module.split(".")
        above = {".".join(parts[:end]) for end in range(1, len(parts) + 1)}
        hidden = any(part.startswith("_") for part in parts)
        if (above & self.blocked or hidden) and not above & self.trusted:
            return f"Blocked import: {module!r}"
        if self.allowed is not None and module not in self.allowed and not above & self.trusted:
            return f"Import not allowed: {module!r}"
        return None


def violations(code: str, permits: Permits) -> list[str]:
    """Everything that is wrong with a text, in the order in which it stands."""
    try:
        tree = ast.parse(code)
    except SyntaxError as flaw:
        return [f"Not Python: line {flaw.lineno or 0} cannot be read"]
    except (ValueError, RecursionError, MemoryError):
        return ["Not Python: it cannot be read"]
    return _Look(permits).at(tree)


@dataclass(slots=True)
class _Look:
    permits: Permits
    # The name by which the code has a module, and which one it is.
    modules: dict[str, str] = field(default_factory=dict[str, str])
    bound: set[str] = field(default_factory=set[str])
    parents: dict[int, ast.AST] = field(default_factory=dict[int, ast.AST])

    def at(self, tree: ast.AST) -> list[str]:
        nodes: list[ast.AST] = []
        for node in ast.walk(tree):
            nodes.append(node)
            if len(nodes) > MOST_NODES:
                return ["Code too large: it has too many parts"]
            for child in ast.iter_child_nodes(node):
                self.parents[id(child)] = node
        for node in nodes:
            self.bound.update(bindings(node))
            if isinstance(node, ast.Import):
                self._learn(node)
        found = [(getattr(node, "lineno", 0), each) for node in nodes for each in self._judge(node)]
        return [each for _, each in sorted(found, key=lambda pair: pair[0])]

    def _learn(self, node: ast.Import) -> None:
        for alias in node.names:
            if alias.asname is not None:
                self.modules[alias.asname] = alias.name
            else:
                self.modules[alias.name.partition(".")[0]] = alias.name

    def _judge(self, node: ast.AST) -> Iterator[str]:
        match node:
            case ast.Import():
                yield from filter(None, (self.permits.module_problem(a.name) for a in node.names))
            case ast.ImportFrom():
                yield from self._import_from(node)
            case ast.Attribute():
                yield from self._attribute(node)
            case ast.Name():
                yield from self._name(node)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield from self._definition(node)
            case ast.Call():
                yield from self._call(node)
            case _:
                yield from self._other(node)

    def _import_from(self, node: ast.ImportFrom) -> Iterator[str]:
        module = node.module or ""
        if module == "__future__" and not node.level:
            return
        problem = "Blocked import: relative" if node.level else self.permits.module_problem(module)
        if problem is not None:
            yield problem
            return
        for alias in node.names:
            inner = f"{module}.{alias.name}"
            if alias.name == "*":
                yield f"Blocked import: everything of {module!r}"
            elif self._is_hidden(alias.name) or inner in self.permits.blocked:
                yield f"Blocked import: {inner!r}"
            elif not self._offers(module, alias.name):
                yield f"Import not allowed: {inner!r}"

    def _offers(self, module: str, name: str) -> bool:
        """Whether a module's attribute is known to do no harm; at `standard` any but the worst."""
        blocked = name in lists.BLOCKED_ATTRIBUTES or name in lists.INNER_MODULES
        if blocked and module not in self.permits.trusted:
            return False
        if not self.permits.is_strict or module in self.permits.trusted:
            return True
        known = lists.ALLOWED_MODULES.get(module)
        return f"{module}.{name}" in lists.ALLOWED_MODULES or (known is not None and name in known)

    def _is_hidden(self, name: str) -> bool:
        return name.startswith("_") or name in lists.BLOCKED_NAMES

    def _attribute(self, node: ast.Attribute) -> Iterator[str]:
        module = self._module_at(dotted(node.value))
        if module is not None:
            problem = self._module_attribute_problem(module, node.attr)
        else:
            problem = self._attribute_problem(node)
        if problem is not None:
            yield problem
        elif self.permits.only_reads and node.attr in lists.WRITING_ATTRIBUTES:
            yield f"Blocked write: {node.attr!r}"

    def _module_attribute_problem(self, module: str, name: str) -> str | None:
        whole = f"{module}.{name}"
        if whole in self.permits.blocked:
            return f"Blocked attribute: {whole}"
        if whole in (*self.modules.values(), *lists.ALLOWED_MODULES):
            return None
        if self._is_hidden(name) and name != "__version__":
            return f"Blocked attribute: {whole}"
        return None if self._offers(module, name) else f"Attribute not allowed: {whole}"

    def _attribute_problem(self, node: ast.Attribute) -> str | None:
        name, owner = node.attr, dotted(node.value)
        is_own = owner in ("self", "cls")
        hidden = name.startswith("__") or (
            name.startswith("_") and self.permits.is_strict and not is_own
        )
        if hidden and not is_super_init(node):
            return f"Blocked attribute: {name!r}"
        if self._is_unreachable(name, owner):
            return f"Blocked attribute: {name!r}"
        if name == "format" and not is_plain_format(node.value):
            return "Blocked attribute: 'format', but on a literal text with plain fields"
        return None

    def _is_unreachable(self, name: str, owner: str) -> bool:
        if name in lists.EXPRESSIONS:
            used = {module.partition(".")[0] for module in self.modules.values()}
            if used & set(lists.EXPRESSIONS[name]):
                return True
        if owner.partition(".")[0] in self.modules and name in lists.INNER_MODULES:
            return True
        return name in lists.BLOCKED_ATTRIBUTES

    def _module_at(self, owner: str) -> str | None:
        """Which module an expression of names and dots is, where it is one."""
        if not owner:
            return None
        head, _, rest = owner.partition(".")
        module = self.modules.get(head)
        if module is None:
            return None
        # `import a.b` binds a; `import a.b as c` binds c to a.b.
        first = module.partition(".")[0] if head == module.partition(".")[0] else module
        whole = f"{first}.{rest}" if rest else first
        known = {*self.modules.values(), *lists.ALLOWED_MODULES, first}
        return whole if whole in known else None

    def _name(self, node: ast.Name) -> Iterator[str]:
        name = node.id
        if name in ("open", "getattr", "hasattr"):
            yield from self._named_call(node)
        elif name in lists.BLOCKED_NAMES or (name.startswith("__") and not is_known_dunder(node)):
            yield f"Blocked name: {name!r}"
        elif name == "type" and not self._is_question(node):
            yield "Blocked name: 'type', but to ask for the type of one value"
        elif self.permits.is_strict:
            if name in self.modules and not self._is_owner(node):
                yield f"Blocked name: the module {name!r} as a value"
            elif name not in self.bound and name not in lists.BUILTINS:
                yield f"Unknown name: {name!r}"

    def _named_call(self, node: ast.Name) -> Iterator[str]:
        """Names that are let through at `standard` where their arguments stand there plainly."""
        call = self.parents.get(id(node))
        if self.permits.is_strict or not isinstance(call, ast.Call) or call.func is not node:
            yield f"Blocked name: {node.id!r}"
        elif node.id == "open":
            if not only_reads(call):
                yield "Blocked name: 'open', but to read"
        else:
            name = names_a_plain_attribute(call)
            owner = dotted(call.args[0]) if call.args else ""
            is_plain = name is not None and not name.startswith("_") and name != "format"
            if not is_plain or self._is_unreachable(name or "", owner) or owner in self.modules:
                yield f"Blocked name: {node.id!r}, but with the plain name of an attribute"

    def _is_question(self, node: ast.Name) -> bool:
        call = self.parents.get(id(node))
        if self.permits.is_strict:
            return isinstance(call, ast.Call) and call.func is node and has_one_value(call)
        is_annotation = isinstance(call, ast.Subscript | ast.arg | ast.AnnAssign)
        return is_annotation or (
            isinstance(call, ast.Call) and call.func is node and has_one_value(call)
        )

    def _is_owner(self, node: ast.Name) -> bool:
        parent = self.parents.get(id(node))
        return isinstance(parent, ast.Attribute) and isinstance(node.ctx, ast.Load)

    def _definition(self, node: _Named) -> Iterator[str]:
        if node.name.startswith("__") and node.name not in lists.DEFINABLE:
            yield f"Blocked definition: {node.name!r}"
        if node.name in lists.BLOCKED_NAMES:
            yield f"Blocked name: {node.name!r}"
        if getattr(node, "type_params", None):
            yield "Blocked definition: type parameters"
        for decorator in node.decorator_list if self.permits.is_strict else ():
            name = dotted(decorator.func if isinstance(decorator, ast.Call) else decorator)
            if name not in lists.DECORATORS and name.rpartition(".")[2] not in (
                "setter",
                "deleter",
            ):
                yield f"Blocked decorator: {name or 'an expression'!r}"
        if isinstance(node, ast.ClassDef) and node.keywords:
            yield from self._class_keywords(node)

    def _class_keywords(self, node: ast.ClassDef) -> Iterator[str]:
        for keyword in node.keywords:
            value = dotted(keyword.value)
            if keyword.arg in ("frozen", "total", "slots") and isinstance(
                keyword.value, ast.Constant
            ):
                continue
            if not (keyword.arg == "metaclass" and value in ("ABCMeta", "abc.ABCMeta")):
                yield f"Blocked definition: {keyword.arg or '**'!r} of a class"

    def _call(self, node: ast.Call) -> Iterator[str]:
        name = dotted(node.func)
        if name in ("wraps", "functools.wraps") and not has_one_value(node):
            yield "Blocked call: wraps with more than the function"
        if self.permits.only_reads and name == "print" and has_keyword(node, "file"):
            yield "Blocked write: print to a file"
        if name in ("namedtuple", "collections.namedtuple") and has_keyword(node, "rename"):
            yield "Blocked call: namedtuple with rename"

    def _other(self, node: ast.AST) -> Iterator[str]:
        if type(node) not in _KNOWN:
            yield f"Blocked syntax: {type(node).__name__}"
        elif isinstance(node, ast.MatchClass):
            yield from (f"Blocked attribute: {n!r}" for n in node.kwd_attrs if self._is_reached(n))
        elif isinstance(node, ast.Global | ast.Nonlocal) and self.permits.only_reads:
            yield "Blocked write: to a name outside of the function"
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from self._annotation(node)
        else:
            yield from (f"Blocked name: {n!r}" for n in bindings(node) if self._is_taken(n))

    def _is_reached(self, name: str) -> bool:
        return name.startswith("_") or name in lists.BLOCKED_ATTRIBUTES

    def _is_taken(self, name: str) -> bool:
        return name in lists.BLOCKED_NAMES or name.startswith("__") or name == "open"

    def _annotation(self, node: ast.Constant) -> Iterator[str]:
        """A string in an annotation is code to whoever asks for the types."""
        if not self._is_in_annotation(node):
            return
        try:
            inner = ast.parse(str(node.value).strip(), mode="eval")
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            yield "Blocked annotation: a string that cannot be read"
            return
        if any(isinstance(each, ast.Call | ast.Lambda | ast.Await) for each in ast.walk(inner)):
            yield "Blocked annotation: a string with a call"
            return
        within = _Look(self.permits, self.modules, self.bound)
        yield from within.at(inner)

    def _is_in_annotation(self, node: ast.AST) -> bool:
        child, parent = node, self.parents.get(id(node))
        while parent is not None:
            if child in (getattr(parent, "annotation", None), getattr(parent, "returns", None)):
                return True
            if isinstance(parent, ast.stmt):
                return False
            child, parent = parent, self.parents.get(id(parent))
        return False
