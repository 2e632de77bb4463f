"""Writes tests.plan: a test goes to the domain of the module that it mirrors, or imports most."""

import ast, pathlib, re, sys
from collections import Counter, defaultdict

root = pathlib.Path("tests")
moves = {}
for f in ("scripts/redesign/modules.plan",):
    for l in open(f):
        if l.startswith("move "):
            left, right = l[5:].split(" > ")
            for m in left.split():
                moves[m] = right.strip()
FLOORS = ("kernel", "rules", "wire", "surfaces", "adapters", "config", "app")


def top(new):
    parts = new.split(".")
    return parts[1] if len(parts) > 2 else "toolkit" if parts[1] == "errors" else parts[1]


place = {}
files = [p for fl in FLOORS for p in (root / fl).rglob("*.py") if p.name not in ("__init__.py",)]


def dotted(p):
    return ".".join(p.with_suffix("").parts)


def imports(p):
    out = Counter()
    for n in ast.walk(ast.parse(p.read_text())):
        if isinstance(n, ast.ImportFrom) and n.module and n.module.startswith("comity"):
            for a in n.names:
                for cand in (f"{n.module}.{a.name}", n.module):
                    if cand in moves:
                        out[top(moves[cand])] += 1
                        break
    return out


# Packages that every test imports say little.
WEAK = {
    "mcp",
    "errors",
    "toolkit",
    "identity",
    "storage",
    "config",
    "http",
    "sessions",
    "policy",
    "telemetry",
    "audit",
}
for p in files:
    if p.name == "conftest.py":
        continue
    rel = p.relative_to(root)
    stem = p.stem.removeprefix("test_")
    mirror = None
    if p.name.startswith("test_"):
        cands = ["comity." + ".".join((*rel.parent.parts, stem))]
        for sub in ("upstream", "sql", "models", "nats", "memory", "live"):
            cands.append(f"comity.{rel.parts[0]}.{sub}.{stem}")
        # a prefix: test_held_ends -> held
        bits = stem.split("_")
        for k in range(len(bits) - 1, 0, -1):
            cands.append(f"comity.{rel.parts[0]}.{'_'.join(bits[:k])}")
            cands.append(f"comity.{rel.parts[0]}.live.{'_'.join(bits[:k])}")
            cands.append(f"comity.{rel.parts[0]}.upstream.{'_'.join(bits[:k])}")
        mirror = next((c for c in cands if c in moves), None)
    if mirror:
        place[p] = top(moves[mirror])
    else:
        c = imports(p)
        strong = Counter({k: v for k, v in c.items() if k not in WEAK})
        place[p] = (strong or c).most_common(1)[0][0] if c else None
# helpers go where they are used
users = defaultdict(set)
for p in root.rglob("*.py"):
    for n in ast.walk(ast.parse(p.read_text())):
        if isinstance(n, ast.ImportFrom) and n.module and n.module.startswith("tests"):
            for a in n.names:
                users[n.module].add(p)
                users[f"{n.module}.{a.name}"].add(p)
out = []
taken = set()
for p in sorted(files):
    if p.name == "conftest.py":
        print("# conftest", p, file=sys.stderr)
        continue
    d = dotted(p)
    if not p.name.startswith("test_"):
        us = {place.get(u) or u.relative_to(root).parts[0] for u in users[d]}
        target = "support" if len(us) != 1 else next(iter(us))
    else:
        target = place[p] or "support"
    if p.relative_to(root).parts[0] == "app" and p.name.startswith("test_") and place[p] is None:
        target = "app"
    name = p.stem
    floor = p.relative_to(root).parts[0]
    new = f"tests.{target}.{name}"
    existing = root / target / f"{name}.py"
    if (
        new in taken
        or (existing.exists() and existing not in files)
        or (existing.exists() and existing != p and dotted(existing) == new and target in FLOORS)
    ):
        new = f"tests.{target}.{name}_{floor}"
    taken.add(new)
    if new != d:
        out.append(f"move {d} > {new}")
open("scripts/redesign/tests.plan", "w").write("\n".join(out) + "\n")
print(len(out))
print(Counter(l.split(" > ")[1].split(".")[1] for l in out))
