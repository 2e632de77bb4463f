"""Moves, merges, splits and renames modules and their names over the whole project, by a plan.

A plan is a text file of lines:

    move   comity.kernel.chores > comity.toolkit.background
    rename comity.kernel.chores Chores > BackgroundTasks
    split  comity.wire.audit stamp > comity.toolkit.text
    drop   comity.kernel.own_tools

Several modules that move to one place are merged, in the order of their imports. Tests are modules
like all others. Without --write it only tells what it would have to rename or cannot do:

    .venv/bin/python scripts/redesign/refactor.py scripts/redesign/*.plan [--write]

It is here for the redesign alone, and goes when that is done.
"""

import ast
import builtins
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path.cwd()
HOMES = {
    "comity": ROOT / "src" / "comity",
    **{name: ROOT / name for name in ("tests", "bench", "examples")},
}
MINE = tuple(HOMES)
SKIP = {"node_modules", ".venv", "__pycache__"}
BUILTINS = set(dir(builtins))


def is_own(name: str | None) -> bool:
    return bool(name) and name.split(".")[0] in MINE


@dataclass
class File:
    name: str
    is_package: bool
    text: str
    path: Path
    tree: ast.Module = field(init=False, repr=False)

    def __post_init__(self):
        self.tree = ast.parse(self.text)
        self.lines = self.text.encode().splitlines(keepends=True)
        self.starts = [0]
        for line in self.lines:
            self.starts.append(self.starts[-1] + len(line))

    def at(self, line, col):
        return self.starts[line - 1] + col

    def span(self, node):
        return self.at(node.lineno, node.col_offset), self.at(node.end_lineno, node.end_col_offset)


def path_of(name, is_package=False):
    head, *rest = name.split(".")
    base = HOMES[head].joinpath(*rest)
    return base / "__init__.py" if is_package else base.with_suffix(".py")


def load():
    files = {}
    for head, home in HOMES.items():
        for path in sorted(home.rglob("*.py")):
            if (
                SKIP & set(path.parts)
                or "migrations/versions" in path.as_posix()
                or "/templates/" in path.as_posix()
            ):
                continue
            parts = path.relative_to(home).with_suffix("").parts
            is_package = parts[-1] == "__init__"
            name = ".".join((head, *(parts[:-1] if is_package else parts)))
            files[name] = File(name, is_package, path.read_text(), path)
    return files


FUNCS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
COMPS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def stores(body, into, declared):
    """Names bound by these nodes in their own scope."""
    for node in body:
        _stores(node, into, declared)


def _stores(node, into, declared):
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        into.add(node.name)
        for each in node.decorator_list:
            _stores(each, into, declared)
        return
    if isinstance(node, ast.TypeAlias):
        into.add(node.name.id)
        return
    if isinstance(node, ast.Lambda):
        return
    if isinstance(node, COMPS):
        for each in ast.walk(node):
            if isinstance(each, ast.NamedExpr):
                into.add(each.target.id)
        return
    if isinstance(node, ast.Name) and isinstance(node.ctx, (ast.Store, ast.Del)):
        into.add(node.id)
    elif isinstance(node, (ast.Import, ast.ImportFrom)):
        for alias in node.names:
            into.add((alias.asname or alias.name).split(".")[0])
    elif isinstance(node, ast.ExceptHandler) and node.name:
        into.add(node.name)
    elif isinstance(node, (ast.MatchAs, ast.MatchStar)) and node.name:
        into.add(node.name)
    elif isinstance(node, ast.MatchMapping) and node.rest:
        into.add(node.rest)
    elif isinstance(node, (ast.Global, ast.Nonlocal)):
        declared.update(node.names)
    for child in ast.iter_child_nodes(node):
        _stores(child, into, declared)


def global_names(tree):
    """All Name nodes that mean a name of the module (or a builtin)."""
    found = []

    def args_of(node):
        a = node.args
        every = [*a.posonlyargs, *a.args, *a.kwonlyargs, *(x for x in (a.vararg, a.kwarg) if x)]
        return {x.arg for x in every}, every

    def visit(node, scopes):
        if isinstance(node, ast.Name):
            for depth, (kind, names) in enumerate(reversed(scopes)):
                if kind == "class" and depth:
                    continue
                if node.id in names:
                    return
            found.append(node)
            return
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for each in node.decorator_list:
                visit(each, scopes)
            inner = scopes
            if node.type_params:
                inner = [*scopes, ("fn", {p.name for p in node.type_params})]
                for p in node.type_params:
                    visit_children(p, inner)
            names, every = args_of(node)
            for default in [*node.args.defaults, *(d for d in node.args.kw_defaults if d)]:
                visit(default, scopes)
            for each in every:
                if each.annotation:
                    visit(each.annotation, inner)
            if node.returns:
                visit(node.returns, inner)
            bound, declared = set(names), set()
            stores(node.body, bound, declared)
            inner = [*inner, ("fn", bound - declared)]
            for each in node.body:
                visit(each, inner)
            return
        if isinstance(node, ast.Lambda):
            names, every = args_of(node)
            for default in [*node.args.defaults, *(d for d in node.args.kw_defaults if d)]:
                visit(default, scopes)
            visit(node.body, [*scopes, ("fn", names)])
            return
        if isinstance(node, ast.ClassDef):
            for each in node.decorator_list:
                visit(each, scopes)
            inner = scopes
            if node.type_params:
                inner = [*scopes, ("fn", {p.name for p in node.type_params})]
                for p in node.type_params:
                    visit_children(p, inner)
            for each in [*node.bases, *node.keywords]:
                visit(each, inner)
            bound, declared = set(), set()
            stores(node.body, bound, declared)
            inner = [*inner, ("class", bound - declared)]
            for each in node.body:
                visit(each, inner)
            return
        if isinstance(node, ast.TypeAlias):
            visit(node.name, scopes)
            inner = [*scopes, ("fn", {p.name for p in node.type_params})]
            visit(node.value, inner)
            return
        if isinstance(node, COMPS):
            bound = set()
            for generator in node.generators:
                for each in ast.walk(generator.target):
                    if isinstance(each, ast.Name):
                        bound.add(each.id)
            visit(node.generators[0].iter, scopes)
            inner = [*scopes, ("fn", bound)]
            for number, generator in enumerate(node.generators):
                visit(generator.target, inner)
                if number:
                    visit(generator.iter, inner)
                for each in generator.ifs:
                    visit(each, inner)
            if isinstance(node, ast.DictComp):
                visit(node.key, inner)
                visit(node.value, inner)
            else:
                visit(node.elt, inner)
            return
        visit_children(node, scopes)

    def visit_children(node, scopes):
        for child in ast.iter_child_nodes(node):
            visit(child, scopes)

    visit(tree, [])
    return found


def bound_around(tree, wanted):
    """The names that the functions around a node bind."""
    names = set()

    def visit(node, bound):
        if node is wanted:
            names.update(bound)
            return
        if isinstance(node, FUNCS):
            inner, declared = set(bound), set()
            a = node.args
            inner |= {
                x.arg
                for x in [
                    *a.posonlyargs,
                    *a.args,
                    *a.kwonlyargs,
                    *(y for y in (a.vararg, a.kwarg) if y),
                ]
            }
            stores(node.body if isinstance(node.body, list) else [node.body], inner, declared)
            bound = inner - declared
        for child in ast.iter_child_nodes(node):
            visit(child, bound)

    visit(tree, set())
    return names


def every_identifier(tree):
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias in node.names:
                found.add(alias.asname or alias.name)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            found.add(node.name)
    return found


def top_definitions(tree):
    """The names that a module itself defines, each with its statements."""
    found = defaultdict(list)
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found[node.name].append(node)
        elif isinstance(node, ast.TypeAlias):
            found[node.name.id].append(node)
        elif not isinstance(node, (ast.Import, ast.ImportFrom)):
            bound = set()
            _stores(node, bound, set())
            for name in bound:
                found[name].append(node)
    return found


class Plan:
    def __init__(self):
        self.moves = {}
        self.renames = {}
        self.splits = []
        self.drops = set()
        self.docs = {}
        self.order = []

    def read(self, text):
        for number, line in enumerate(text.splitlines(), 1):
            line = line.split("#")[0].strip() if not line.startswith("doc") else line.strip()
            if not line:
                continue
            verb, _, rest = line.partition(" ")
            rest = rest.strip()
            if verb == "doc":
                name, _, said = rest.partition(" ")
                self.docs[name] = said.strip().replace("\\n", "\n")
                continue
            if verb == "drop":
                self.drops.add(rest)
                continue
            left, _, right = rest.partition(" > ")
            right = right.strip()
            assert right, f"line {number}: {line}"
            if verb == "move":
                for each in left.split():
                    assert each not in self.moves, each
                    self.moves[each] = right
            elif verb == "rename":
                module, name = left.split()
                self.renames[module, name] = right
            elif verb == "split":
                module, *names = left.split()
                self.splits.append((module, names, right))
            else:
                raise SystemExit(f"line {number}: {line}")


class Trouble(Exception):
    pass


class Project:
    def __init__(self, plan):
        self.plan = plan
        self.files = load()
        self.problems = []
        self.auto = {}
        self.edits = {}

    # names of packages that re-export
    def origin(self, module, name):
        """('module', dotted) or ('symbol', module, name), re-exports of packages followed."""
        full = f"{module}.{name}"
        if full in self.files:
            return ("module", full)
        source = None if module.startswith("comity.sdk.") else self.source(module, name)
        return ("symbol", module, name) if source is None else self.origin(*source)

    def source(self, module, name):
        """Where a module itself has a name from, if from another of ours."""
        file = self.files.get(module)
        if file is None:
            return None
        for node in file.tree.body:
            if isinstance(node, ast.ImportFrom) and is_own(node.module):
                for alias in node.names:
                    if (alias.asname or alias.name) == name:
                        return (node.module, alias.name)
        return None

    def new_module(self, module):
        return self.plan.moves.get(module, module)

    def new_symbol(self, module, name):
        found = self.plan.renames.get((module, name))
        if found is None and module.startswith("comity.sdk."):
            source = self.source(module, name)
            if source is not None and f"{source[0]}.{source[1]}" not in self.files:
                return self.new_symbol(*source)
        return name if found is None else found

    def problem(self, text):
        self.problems.append(text)

    def split(self, module, names, target):
        """Cut definitions out of a module into one of their own, which then moves to the target."""
        file = self.files[module]
        defined = top_definitions(file.tree)
        missing = [n for n in names if n not in defined]
        if missing:
            raise Trouble(f"split {module}: no {missing}")
        cut = []
        body = file.tree.body
        for index, node in enumerate(body):
            if any(node in defined[n] for n in names):
                cut.append(index)
                after = index + 1
                if (
                    after < len(body)
                    and is_text(body[after])
                    and not isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
                ):
                    cut.append(after)
        spans = [statement_span(file, body, index) for index in cut]
        data = file.text.encode()
        piece = b"".join(b"\n\n" + data[a:b] for a, b in spans).decode()
        kept = b""
        last = 0
        for a, b in spans:
            kept += data[last:a]
            last = b
        kept += data[last:]
        imports = "".join(
            data[slice(*file.span(n))].decode() + "\n"
            for n in body
            if isinstance(n, (ast.Import, ast.ImportFrom))
        )
        virtual = f"{module}__{names[0].lower()}"
        used = {n.id for n in global_names(ast.parse(piece))} & set(defined) - set(names)
        back = f"from {module} import {', '.join(sorted(used))}\n" if used else ""
        text = f'"""Split off."""\n\n{imports}{back}\n{piece}\n'
        self.files[virtual] = File(virtual, False, text, path_of(virtual))
        # What is left uses them from there.
        rest = kept.decode()
        left = {n.id for n in global_names(ast.parse(rest))} & set(names)
        if left:
            line = f"from {virtual} import {', '.join(sorted(left))}\n"
            tree = ast.parse(rest)
            first = next(
                (n for n in tree.body if isinstance(n, (ast.Import, ast.ImportFrom))), None
            )
            at = (first.lineno - 1) if first else (tree.body[0].end_lineno if tree.body else 0)
            lines = rest.splitlines(keepends=True)
            rest = "".join([*lines[:at], line, *lines[at:]])
        self.files[module] = File(module, file.is_package, rest, file.path)
        for name in names:
            if (module, name) in self.plan.renames:
                self.plan.renames[virtual, name] = self.plan.renames.pop((module, name))
        # All others import them from the virtual module.
        for other in list(self.files.values()):
            if other.name in (module, virtual):
                continue
            self.redirect(other, module, set(names), virtual)
        self.plan.moves[virtual] = target

    def redirect(self, file, module, names, virtual):
        edits = []
        tree = file.tree
        bound_modules = {}
        for node in tree.body:
            if not isinstance(node, ast.ImportFrom) or not is_own(node.module):
                continue
            if node.module == module:
                gone = [a for a in node.names if a.name in names]
                if not gone:
                    continue
                stay = [a for a in node.names if a.name not in names]
                said = [f"from {virtual} import {', '.join(spelled(a) for a in gone)}"]
                if stay:
                    said.append(f"from {module} import {', '.join(spelled(a) for a in stay)}")
                edits.append((*file.span(node), "\n".join(said)))
            else:
                for alias in node.names:
                    if f"{node.module}.{alias.name}" == module:
                        bound_modules[alias.asname or alias.name] = node
        if bound_modules:
            globals_ = {id(n) for n in global_names(tree)}
            wanted = set()
            for node in ast.walk(tree):
                if (
                    isinstance(node, ast.Attribute)
                    and isinstance(node.value, ast.Name)
                    and id(node.value) in globals_
                    and node.value.id in bound_modules
                    and node.attr in names
                ):
                    local = virtual.rpartition(".")[2]
                    edits.append((*file.span(node.value), local))
                    wanted.add(bound_modules[node.value.id])
            for node in wanted:
                start, _ = file.span(node)
                parent, _, base = virtual.rpartition(".")
                edits.append((start, start, f"from {parent} import {base}\n"))
        if edits:
            self.files[file.name] = File(file.name, file.is_package, apply(file, edits), file.path)

    def rewritten(self, file):
        """The text of a file after all moves and renames; its imports of itself are gone."""
        me = self.new_module(file.name)
        tree, edits = file.tree, []
        names = global_names(tree)
        is_global = {id(n) for n in names}
        locals_ = {}  # old local -> new local (or dotted replacement)
        modules = {}  # old local -> old module it means
        all_names = every_identifier(tree)
        new_locals = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    if is_own(alias.name) and self.new_module(alias.name) != alias.name:
                        self.problem(f"{file.name}:{node.lineno}: import {alias.name}")
                continue
            if not isinstance(node, ast.ImportFrom) or not is_own(node.module):
                continue
            said = defaultdict(list)
            changed = False
            for alias in node.names:
                local = alias.asname or alias.name
                target = self.origin(node.module, alias.name)
                if target[0] == "module":
                    old = target[1]
                    new = self.new_module(old)
                    modules[local] = old
                    parent, _, base = new.rpartition(".")
                    if new == me and not file.is_package:
                        changed = True
                        locals_[local] = None  # its names are in this module
                        continue
                    if (
                        old.rpartition(".")[2] == base
                        and old == f"{node.module}.{alias.name}"
                        and new == old
                    ):
                        said[node.module].append(spelled(alias))
                        continue
                    changed = True
                    if alias.asname:
                        fresh = local if local != base else base
                    else:
                        fresh = base
                        is_taken = new_locals.get(base, new) != new
                        if base != local and (
                            is_taken or (base in all_names and new_locals.get(base) != new)
                        ):
                            fresh = local
                            self.problem(f"{file.name}: `{base}` is taken; kept `as {local}`")
                    said[parent].append(base if fresh == base else f"{base} as {fresh}")
                    new_locals[fresh] = new
                    if fresh != local:
                        locals_[local] = fresh
                else:
                    _, module, name = target
                    fresh_name = self.new_symbol(module, name)
                    new = self.new_module(module)
                    if new == me and not file.is_package:
                        changed = True
                        if local != fresh_name:
                            locals_[local] = fresh_name
                        continue
                    if (new, fresh_name) == (node.module, alias.name):
                        said[node.module].append(spelled(alias))
                        continue
                    changed = True
                    if alias.asname and alias.asname != fresh_name:
                        said[new].append(f"{fresh_name} as {alias.asname}")
                    else:
                        fresh = fresh_name
                        if fresh != local and fresh in all_names and local in all_names:
                            # Taken by something else in this file?
                            if taken(tree, fresh, module, name, self):
                                said[new].append(f"{fresh_name} as {local}")
                                self.problem(f"{file.name}: `{fresh}` is taken; kept `as {local}`")
                                continue
                        said[new].append(fresh_name)
                        if fresh != local:
                            locals_[local] = fresh
            if changed:
                lines = [
                    f"from {m} import {', '.join(dict.fromkeys(ns))}"
                    for m, ns in said.items()
                    if ns
                ]
                pad = " " * node.col_offset
                start, end = file.span(node)
                if lines:
                    edits.append((start, end, ("\n" + pad).join(lines)))
                elif node.col_offset:
                    edits.append((start, end, "pass"))
                else:
                    edits.append((*self.whole_lines(file, node), ""))
        # its own definitions
        own = {}
        for (module, name), fresh in self.plan.renames.items():
            if module == file.name:
                own[name] = fresh
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                value = node.value
                if id(value) in is_global and value.id in modules:
                    old = modules[value.id]
                    fresh = self.new_symbol(old, node.attr)
                    if value.id in locals_ and locals_[value.id] is None:
                        if fresh in bound_around(tree, node):
                            self.problem(
                                f"{file.name}:{node.lineno}: `{value.id}.{fresh}` would be hidden by a local name"
                            )
                        edits.append((*file.span(node), fresh))
                        value._done = True
                    elif fresh != node.attr:
                        _, end = file.span(node)
                        edits.append((end - len(node.attr.encode()), end, fresh))
            elif isinstance(node, ast.Call) and len(node.args) >= 2:
                first, second = node.args[:2]
                if (
                    isinstance(first, ast.Name)
                    and id(first) in is_global
                    and first.id in modules
                    and isinstance(second, ast.Constant)
                    and isinstance(second.value, str)
                ):
                    old = modules[first.id]
                    fresh = self.new_symbol(old, second.value)
                    if fresh != second.value:
                        edits.append((*file.span(second), repr(fresh).replace("'", '"')))
        for node in names:
            if getattr(node, "_done", False):
                continue
            if node.id in locals_:
                fresh = locals_[node.id]
                if fresh is None:
                    self.problem(
                        f"{file.name}:{node.lineno}: module `{node.id}` used as a value in itself"
                    )
                    continue
                edits.append((*file.span(node), fresh))
            elif node.id in own:
                edits.append((*file.span(node), own[node.id]))
        for node in tree.body:
            if (
                isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
                and node.name in own
            ):
                start = file.at(node.lineno, node.col_offset)
                data = file.text.encode()
                found = re.compile(rb"(?:class|def)\s+(" + node.name.encode() + rb")\b").search(
                    data, start
                )
                edits.append((*found.span(1), own[node.name]))
        words = {**{k: v for k, v in locals_.items() if v}, **own}
        for text in exported_names(tree):
            if text.value in words:
                edits.append((*file.span(text), f'"{words[text.value]}"'))
        if words:
            for text in quoted_types(tree):
                fresh = re.sub(
                    r"(?<![\w.])[A-Za-z_]\w*", lambda m: words.get(m.group(), m.group()), text.value
                )
                if fresh != text.value:
                    edits.append((*file.span(text), '"' + fresh + '"'))
        self.edits[file.name] = edits
        return apply(file, edits), words

    def whole_lines(self, file, node):
        start = file.starts[node.lineno - 1]
        end = file.starts[node.end_lineno]
        return start, end

    def run(self):
        for module, names, target in self.plan.splits:
            self.split(module, names, target)
        unknown = [m for m in self.plan.moves if m not in self.files]
        if unknown:
            raise Trouble(f"no such modules: {unknown}")
        clash = [
            n
            for n in set(self.plan.moves.values())
            if n in self.plan.moves and self.plan.moves[n] != n
        ]
        if clash:
            raise Trouble(f"a module moves to the place of one that moves away: {clash}")
        # Packages that move take their modules along only where each is named.
        self.edge_words = {}
        fresh = {}
        for name, file in self.files.items():
            if name in self.plan.drops:
                continue
            fresh[name], self.edge_words[name] = self.rewritten(file)
        groups = defaultdict(list)
        for name in fresh:
            groups[self.new_module(name)].append(name)
        result = {}
        for new, olds in groups.items():
            if len(olds) == 1:
                old = olds[0]
                text = fresh[old]
                if new in self.plan.docs:
                    text = with_docstring(text, self.plan.docs[new])
                result[new] = (self.files[old].is_package, text)
            else:
                result[new] = (False, self.merge(new, self.sorted_group(olds), fresh))
        return result

    def sorted_group(self, olds):
        """By their imports of each other, the first named first."""
        done, out = set(), []
        place = {name: index for index, name in enumerate(self.plan.moves)}
        olds = sorted(olds, key=lambda name: place.get(name, -1))

        def add(name, path=()):
            if name in done:
                return
            if name in path:
                self.problem(f"circle in {olds}: {path}")
                return
            for node in ast.walk(self.files[name].tree):
                if isinstance(node, ast.ImportFrom) and is_own(node.module):
                    for alias in node.names:
                        target = self.origin(node.module, alias.name)
                        if target[1] in olds and target[1] != name:
                            add(target[1], (*path, name))
            done.add(name)
            out.append(name)

        for name in olds:
            add(name)
        return out

    def merge(self, new, olds, fresh):
        """The modules in one, those first that others are made from."""
        parsed = {old: File(old, False, fresh[old], self.files[old].path) for old in olds}
        owners = defaultdict(list)
        for old, file in parsed.items():
            for name, nodes in top_definitions(file.tree).items():
                owners[name].append(("def", old, nodes))
            for node in file.tree.body:
                if isinstance(node, (ast.Import, ast.ImportFrom)):
                    for alias in node.names:
                        local = alias.asname or alias.name.split(".")[0]
                        what = (
                            (node.module, alias.name)
                            if isinstance(node, ast.ImportFrom)
                            else (alias.name if alias.asname else local, "")
                        )
                        owners[local].append(("import", old, what))
        skipped = set()
        for name, whos in owners.items():
            defs = [w for w in whos if w[0] == "def"]
            imps = {w[2] for w in whos if w[0] == "import"}
            for each in defs[1:]:
                if same_code(defs[0][2], each[2]):
                    skipped.update(id(n) for n in each[2])
                    continue
                self.rename_later(new, each[1], name, owners)
            if len(imps) > 1:
                self.problem(
                    f"{new}: `{name}` is imported as {sorted(map(str, imps))} in {[w[1] for w in whos]}"
                )
            if defs and imps:
                if name.startswith("_") or defs[0][1].startswith("comity"):
                    self.rename_later(new, defs[0][1], name, owners)
                else:
                    self.problem(f"{new}: `{name}` of {defs[0][1]} is imported: {imps}")
        for old, file in parsed.items():
            loads = {n.id for n in global_names(file.tree)} & BUILTINS
            for name in loads:
                for kind, other, _ in owners.get(name, []):
                    if other != old and kind == "def":
                        self.rename_later(new, other, name, owners)
        imports, bodies, doc = [], [], None
        for old, file in parsed.items():
            data, body = file.text.encode(), file.tree.body
            if doc is None:
                doc = ast.get_docstring(file.tree)
            keep = []
            for index, node in enumerate(body):
                if index == 0 and is_text(node):
                    continue
                if isinstance(node, (ast.Import, ast.ImportFrom)):
                    imports.append(
                        data[file.starts[node.lineno - 1] : file.starts[node.end_lineno]].decode()
                    )
                    continue
                before = body[index - 1] if index else None
                if id(node) in skipped or (is_text(node) and id(before) in skipped):
                    continue
                start, end = statement_span(file, body, index)
                keep.append(data[start:end].decode())
            bodies.append("".join(keep).strip("\n"))
        doc = self.plan.docs.get(new, doc)
        said = f'"""{doc}"""' if "\n" not in doc else f'"""{doc}\n"""'
        return (
            said
            + "\n\n"
            + "".join(dict.fromkeys(imports))
            + "\n\n"
            + "\n\n\n".join(b for b in bodies if b)
            + "\n"
        )

    def rename_later(self, new, old, name, owners):
        """Two modules that become one have the same name: the later one's gets another."""
        original = next(
            (n for (m, n), f in self.plan.renames.items() if m == old and f == name), name
        )
        made = self.conflict_name(name, old, owners)
        if (old, original) not in self.auto:
            self.auto[old, original] = made
            if not name.startswith("_"):
                self.problem(f"{new}: `{name}` of {old} is named {made}")

    def conflict_name(self, name, old, owners):
        base = old.rpartition(".")[2].split("__")[0]
        bare = name.lstrip("_")
        under = name[: len(name) - len(bare)]
        if bare.isupper():
            made = f"{under}{base.upper()}_{bare}"
        elif bare[:1].isupper():
            made = under + "".join(p.capitalize() for p in base.split("_")) + bare
        else:
            made = f"{under}{base}_{bare}"
        while made in owners:
            made += "_"
        return made


def same_code(one, other):
    return [ast.dump(n) for n in one] == [ast.dump(n) for n in other]


def is_text(node):
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def statement_span(file, body, index):
    """From the end of the statement before it to its own end: with the comments above it."""
    node = body[index]
    first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
    before = body[index - 1].end_lineno if index else 0
    start = file.starts[before] if before < first else file.starts[first - 1]
    # On the same line as the one before (a; b) is not written here.
    return start, file.starts[node.end_lineno] if node.end_lineno < len(file.starts) else len(
        file.text.encode()
    )


def spelled(alias):
    return alias.name if not alias.asname else f"{alias.name} as {alias.asname}"


def taken(tree, fresh, module, name, project):
    """Whether a name is bound in this file by anything but an import of that very thing."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if (alias.asname or alias.name) == fresh:
                    # it will be renamed itself, perhaps
                    target = (
                        project.origin(node.module, alias.name) if is_own(node.module) else None
                    )
                    if target and target[0] == "symbol" and alias.asname is None:
                        if project.new_symbol(target[1], target[2]) != fresh:
                            continue
                        if (target[1], target[2]) == (module, name):
                            continue
                    return True
        elif (
            isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
            and node.name == fresh
        ):
            return True
        elif isinstance(node, ast.Name) and node.id == fresh and isinstance(node.ctx, ast.Store):
            return True
        elif isinstance(node, ast.arg) and node.arg == fresh:
            return True
    return False


def exported_names(tree):
    """The strings of `__all__`."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(
            isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets
        ):
            for each in ast.walk(node.value):
                if isinstance(each, ast.Constant) and isinstance(each.value, str):
                    yield each


def quoted_types(tree):
    found = []

    def strings(node):
        if (
            isinstance(node, ast.Subscript)
            and isinstance(node.value, ast.Name)
            and node.value.id == "Literal"
        ):
            return
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and node.lineno == node.end_lineno
        ):
            found.append(node)
        for child in ast.iter_child_nodes(node):
            strings(child)

    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == "cast"
            and node.args
        ):
            strings(node.args[0])
        elif isinstance(node, ast.arg) and node.annotation is not None:
            strings(node.annotation)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.returns is not None:
            strings(node.returns)
        elif isinstance(node, ast.AnnAssign):
            strings(node.annotation)
        elif isinstance(node, ast.TypeAlias):
            strings(node.value)
    unique = {}
    for each in found:
        unique[each.lineno, each.col_offset] = each
    return list(unique.values())


def apply(file, edits):
    data = file.text.encode()
    out, last = [], 0
    for start, end, text in sorted(set(edits), key=lambda e: (e[0], e[1])):
        if start < last:
            raise Trouble(f"{file.name}: edits overlap at {start}: {text}")
        out.append(data[last:start])
        out.append(text.encode())
        last = end
    out.append(data[last:])
    return b"".join(out).decode()


def rename_globals(file, names):
    edits = []
    for node in global_names(file.tree):
        if node.id in names:
            edits.append((*file.span(node), names[node.id]))
    for node in file.tree.body:
        if (
            isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
            and node.name in names
        ):
            start = file.at(node.lineno, node.col_offset)
            found = re.compile(rb"(?:class|def)\s+(" + node.name.encode() + rb")\b").search(
                file.text.encode(), start
            )
            edits.append((*found.span(1), names[node.name]))
    for text in quoted_types(file.tree):
        fresh = re.sub(
            r"(?<![\w.])[A-Za-z_]\w*", lambda m: names.get(m.group(), m.group()), text.value
        )
        if fresh != text.value:
            edits.append((*file.span(text), '"' + fresh + '"'))
    return apply(file, edits)


def with_docstring(text, doc):
    tree = ast.parse(text)
    said = f'"""{doc}"""' if "\n" not in doc else f'"""{doc}\n"""'
    if tree.body and is_text(tree.body[0]):
        file = File("x", False, text, Path())
        return apply(file, [(*file.span(tree.body[0]), said)])
    return said + "\n\n" + text


DOTTED = re.compile(r"(?<![\w/.])(?:comity|tests|bench)(?:\.[A-Za-z_]\w*)+")
TEXTS = {
    ".md",
    ".toml",
    ".yml",
    ".yaml",
    ".sh",
    ".py",
    ".cfg",
    ".json",
    ".tsv",
    ".txt",
    ".html",
    "",
}


def text_mapper(project):
    """Names of modules and paths in all other text."""
    modules = {m: project.new_module(m) for m in project.files if project.new_module(m) != m}
    paths = {}
    for old, new in modules.items():
        if "__" in old.rpartition(".")[2]:
            continue
        a = path_of(old).relative_to(ROOT).as_posix()
        b = path_of(new).relative_to(ROOT).as_posix()
        paths[a] = b
        if old.startswith("comity."):
            paths[a.removeprefix("src/")] = b.removeprefix("src/")
            short = a.removeprefix("src/comity/")
            paths[short] = b.removeprefix("src/comity/")
            if "/" in short:
                paths["`" + short.removesuffix(".py") + "`"] = (
                    "`" + b.removeprefix("src/comity/").removesuffix(".py") + "`"
                )
    spelled_paths = (
        re.compile(
            r"(?<![\w/.-])(?:"
            + "|".join(sorted(map(re.escape, paths), key=len, reverse=True))
            + r")(?![\w])"
        )
        if paths
        else None
    )

    def dotted(found):
        name = found.group()
        parts = name.split(".")
        for length in range(len(parts), 1, -1):
            head = ".".join(parts[:length])
            if head in project.files:
                rest = parts[length:]
                new = project.new_module(head)
                if rest:
                    rest[0] = project.new_symbol(head, rest[0])
                return ".".join([new, *rest])
        return name

    def mapped(text):
        text = DOTTED.sub(dotted, text)
        if spelled_paths:
            text = spelled_paths.sub(lambda m: paths[m.group()], text)
        return text

    return mapped


def mapped_mutants(project, text):
    """The table of mutants: each quotes the product, and changes where the product does."""
    for mutant in tomllib.loads(text)["mutant"]:
        for file in project.files.values():
            place = file.text.encode().find(mutant["find"].encode())
            if place < 0 or not file.name.startswith("comity."):
                continue
            end = place + len(mutant["find"].encode())
            inner = [
                (a - place, b - place, said)
                for a, b, said in project.edits.get(file.name, [])
                if place <= a and b <= end
            ]
            part = File.__new__(File)
            part.text, part.name = mutant["find"], file.name
            fresh = apply(part, inner)
            words = project.edge_words.get(file.name, {})
            other = re.sub(
                r"(?<![\w.])[A-Za-z_]\w*",
                lambda m: words.get(m.group(), m.group()),
                mutant["replace"],
            )
            if fresh != mutant["find"]:
                text = text.replace(mutant["find"], fresh)
            if other != mutant["replace"] and mutant["replace"]:
                text = text.replace(mutant["replace"], other)
            break
    return text


def tracked():
    listed = subprocess.run(
        ["git", "ls-files", "-z"], capture_output=True, text=True, check=True
    ).stdout
    return [ROOT / n for n in listed.split("\0") if n]


def main():
    write = "--write" in sys.argv
    texts = [Path(a).read_text() for a in sys.argv[1:] if not a.startswith("--")]
    auto = {}
    for attempt in range(8):
        plan = Plan()
        for text in texts:
            plan.read(text)
        for key, fresh in auto.items():
            plan.renames[key] = fresh
        project = Project(plan)
        result = project.run()
        new = {k: v for k, v in project.auto.items() if auto.get(k) != v}
        if not new:
            break
        auto.update(new)
    for each in dict.fromkeys(project.problems):
        print("!", each)
    for (module, name), fresh in sorted(auto.items()):
        print(f"auto rename {module} {name} > {fresh}")
    if not write:
        return
    mapper = text_mapper(project)
    before = {f.path for n, f in project.files.items() if f.path.exists()}
    after = {}
    for name, (is_package, text) in result.items():
        if name in project.files and project.files[name].is_package:
            is_package = True
        after[path_of(name, is_package)] = text
    for path in before - set(after):
        path.unlink()
    for path, text in after.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = mapper(text)
        if not path.exists() or path.read_text() != fresh:
            path.write_text(fresh)
        folder = path.parent
        home = ROOT / "src" / "comity"
        while home in folder.parents:
            face = folder / "__init__.py"
            if not face.exists() and face not in after:
                dotted = "comity." + ".".join(folder.relative_to(home).parts)
                said = project.plan.docs.get(dotted)
                face.write_text(f'"""{said}"""\n' if said else "")
            folder = folder.parent
    done = set(after)
    for path in tracked():
        if path in done or not path.is_file() or path.suffix not in TEXTS or SKIP & set(path.parts):
            continue
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        if path.name == "mutants.toml":
            fresh = mapped_mutants(project, text)
        else:
            fresh = mapper(text)
        if fresh != text:
            path.write_text(fresh)
    subprocess.run(
        [".venv/bin/ruff", "check", "-q", "--select", "I,F401", "--fix", "src", "tests", "bench"]
    )
    subprocess.run([".venv/bin/ruff", "format", "-q", "src", "tests", "bench"])


if __name__ == "__main__":
    main()
