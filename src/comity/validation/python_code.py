"""Code safety levels, and the analysis of Python code in arguments."""

import ast
import re
import string
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, cast

from comity.toolkit.text import word_set

BLOCKED_MODULES: Final = word_set(
    "os posix nt subprocess multiprocessing pty popen2 commands sh plumbum pexpect fabric "
    "paramiko signal resource sched concurrent _thread threading atexit faulthandler",
    "shutil pathlib io fileinput tempfile glob mmap fcntl termios tty zipfile tarfile shelve dbm "
    "sqlite3 linecache filecmp logging.handlers logging.config configparser netrc",
    "socket socketserver ssl http urllib.request ftplib smtplib poplib imaplib telnetlib xmlrpc "
    "nntplib asyncore asynchat selectors select webbrowser wsgiref cgi",
    "sys builtins importlib imp pkgutil pkg_resources runpy code codeop pdb bdb cmd trace "
    "tracemalloc inspect gc types ast dis symtable compileall py_compile zipimport site "
    "sysconfig ensurepip venv pip setuptools distutils modulefinder __main__ __builtin__ "
    "_frozen_importlib _imp tokenize profile cProfile timeit doctest unittest pydoc idlelib test "
    "lib2to3 rlcompleter",
    "pickle _pickle cPickle marshal copyreg dill cloudpickle joblib jsonpickle yaml ctypes "
    "_ctypes cffi operator _operator codecs encodings weakref",
    "gettext antigravity tkinter turtle wave mailbox gzip bz2 lzma "
    "platform getpass pwd grp spwd crypt curses readline winreg _winapi msvcrt nis syslog",
)

ALLOWED_MODULES: Final[dict[str, frozenset[str]]] = {
    "abc": word_set("ABC abstractmethod"),
    "asyncio": word_set(
        "sleep gather wait_for Queue Lock Event Semaphore TimeoutError create_task run timeout "
        "TaskGroup CancelledError iscoroutinefunction as_completed"
    ),
    "base64": word_set(
        "b64encode b64decode urlsafe_b64encode urlsafe_b64decode b32encode b32decode b16encode "
        "b16decode standard_b64encode standard_b64decode"
    ),
    "bisect": word_set("bisect bisect_left bisect_right insort insort_left insort_right"),
    "calendar": word_set(
        "isleap leapdays monthrange weekday day_name month_name timegm monthcalendar"
    ),
    "collections": word_set("Counter defaultdict deque OrderedDict ChainMap namedtuple"),
    "collections.abc": word_set(
        "Iterable Iterator Mapping MutableMapping Sequence MutableSequence Set Callable Generator "
        "Awaitable Hashable Sized Container Collection AsyncIterator AsyncIterable Coroutine"
    ),
    "cmath": word_set("sqrt exp log log10 phase polar rect pi e sin cos tan inf nan isnan isinf"),
    "dataclasses": word_set("dataclass field asdict astuple replace fields is_dataclass"),
    "datetime": word_set("datetime date time timedelta timezone UTC MINYEAR MAXYEAR tzinfo"),
    "decimal": word_set(
        "Decimal ROUND_HALF_UP ROUND_HALF_EVEN ROUND_DOWN ROUND_UP getcontext localcontext "
        "InvalidOperation DivisionByZero Context ROUND_CEILING ROUND_FLOOR"
    ),
    "difflib": word_set("get_close_matches SequenceMatcher unified_diff ndiff context_diff"),
    "enum": word_set("Enum IntEnum StrEnum Flag IntFlag auto unique"),
    "fractions": word_set("Fraction"),
    "functools": word_set(
        "lru_cache cache wraps partial reduce cmp_to_key total_ordering cached_property"
    ),
    "hashlib": word_set("sha256 sha512 sha1 md5 sha224 sha384 blake2b blake2s sha3_256 sha3_512"),
    "heapq": word_set("heappush heappop heapify heappushpop heapreplace nlargest nsmallest merge"),
    "hmac": word_set("compare_digest digest"),
    "html": word_set("escape unescape"),
    "itertools": word_set(
        "accumulate batched chain combinations combinations_with_replacement compress count "
        "cycle dropwhile filterfalse groupby islice pairwise permutations product repeat starmap "
        "takewhile tee zip_longest"
    ),
    "json": word_set("dumps loads JSONDecodeError"),
    "math": word_set(
        "acos acosh asin asinh atan atan2 atanh cbrt ceil comb copysign cos cosh degrees dist e "
        "erf erfc exp exp2 expm1 fabs factorial floor fmod frexp fsum gamma gcd hypot inf "
        "isclose isfinite isinf isnan isqrt lcm ldexp lgamma log log10 log1p log2 modf nan "
        "nextafter perm pi pow prod radians remainder sin sinh sqrt sumprod tan tanh tau trunc "
        "ulp"
    ),
    "random": word_set(
        "random randint choice choices shuffle sample uniform gauss normalvariate randrange seed "
        "Random triangular betavariate expovariate"
    ),
    "re": word_set(
        "compile match search fullmatch sub subn split findall finditer escape IGNORECASE I "
        "MULTILINE M DOTALL S VERBOSE X ASCII A Pattern Match error"
    ),
    "statistics": word_set(
        "mean fmean median median_low median_high mode multimode stdev pstdev variance pvariance "
        "quantiles correlation covariance linear_regression harmonic_mean geometric_mean"
    ),
    "string": word_set(
        "ascii_letters ascii_lowercase ascii_uppercase digits hexdigits octdigits punctuation "
        "printable whitespace capwords Template"
    ),
    "struct": word_set("pack unpack calcsize unpack_from iter_unpack"),
    "textwrap": word_set("dedent indent fill wrap shorten"),
    "time": word_set("time sleep monotonic perf_counter strftime gmtime localtime time_ns mktime"),
    "typing": word_set(
        "Any Union Optional List Dict Set Tuple Callable Iterable Iterator Sequence Mapping "
        "Literal TypeVar Generic Final ClassVar NamedTuple TypedDict Protocol Annotated cast "
        "Self NoReturn Awaitable AsyncIterator Generator Never TypeAlias runtime_checkable "
        "overload FrozenSet Type"
    ),
    "unicodedata": word_set("normalize category name combining numeric decimal east_asian_width"),
    "urllib.parse": word_set(
        "urlparse urlsplit quote unquote quote_plus urlencode urljoin parse_qs parse_qsl"
    ),
    "uuid": word_set("uuid4 uuid3 uuid5 UUID NAMESPACE_DNS NAMESPACE_URL"),
    "zoneinfo": word_set("ZoneInfo"),
}

BUILTINS: Final = word_set(
    "abs all any ascii bin bool bytearray bytes callable chr complex dict divmod enumerate filter "
    "float format frozenset hash hex int isinstance issubclass iter len list map max min next oct "
    "ord pow print range repr reversed round set slice sorted str sum tuple zip aiter anext id "
    "property staticmethod classmethod super object type NotImplemented Ellipsis True False None",
    "Exception BaseException ArithmeticError AssertionError AttributeError BufferError EOFError "
    "FloatingPointError GeneratorExit ImportError IndexError KeyError KeyboardInterrupt "
    "LookupError ModuleNotFoundError NameError NotImplementedError OSError OverflowError "
    "PermissionError RecursionError RuntimeError StopAsyncIteration StopIteration SyntaxError "
    "SystemExit TimeoutError TypeError UnboundLocalError UnicodeDecodeError UnicodeEncodeError "
    "UnicodeError ValueError ZeroDivisionError ConnectionError FileNotFoundError FileExistsError "
    "IOError ExceptionGroup BaseExceptionGroup Warning UserWarning DeprecationWarning "
    "RuntimeWarning __name__",
)

BLOCKED_NAMES: Final = word_set(
    "eval exec compile __import__ execfile input raw_input getattr setattr delattr hasattr vars "
    "globals locals dir breakpoint memoryview exit quit help copyright credits license reload "
    "__builtins__ __loader__ __spec__ __file__ __doc__ __package__ __build_class__ __debug__ "
    "attrgetter methodcaller itemgetter get_type_hints ForwardRef make_dataclass update_wrapper "
    "singledispatch singledispatchmethod Formatter import_module find_spec run_path run_module"
)

BLOCKED_ATTRIBUTES: Final = word_set(
    "gi_frame gi_code gi_yieldfrom gi_running cr_frame cr_code cr_await cr_origin ag_frame "
    "ag_code ag_await tb_frame tb_next tb_lasti tb_lineno f_back f_globals f_locals f_builtins "
    "f_code f_trace f_lasti co_code co_consts co_names co_varnames func_globals func_code "
    "func_closure mro with_traceback get_stack print_stack get_coro get_context",
    "system popen popen2 popen3 popen4 execv execve execvp execvpe execl execle execlp execlpe "
    "spawnl spawnle spawnlp spawnv spawnve spawnvp posix_spawn posix_spawnp fork forkpty "
    "startfile Popen check_output check_call getoutput getstatusoutput run_module run_path "
    "import_module load_module exec_module find_spec get_data eval exec getattr setattr "
    "attrgetter methodcaller get_type_hints evaluate_forward_ref ForwardRef Formatter format_map "
    "vformat make_dataclass update_wrapper singledispatch singledispatchmethod register_at_fork "
    "dlopen CDLL memmove string_at modules meta_path path_hooks settrace setprofile FileType "
    "ctypeslib f2py read_pickle to_pickle from_pickle loads_pickle unsafe_load full_load",
    "get_loop get_event_loop get_running_loop new_event_loop subprocess_shell subprocess_exec "
    "create_subprocess_shell create_subprocess_exec run_in_executor create_connection "
    "create_server create_unix_connection create_unix_server create_datagram_endpoint "
    "connect_read_pipe connect_write_pipe open_connection open_unix_connection start_server "
    "add_reader add_writer sock_connect sendfile start_tls to_thread",
) | word_set(
    # Modules that other modules import, where no harmless attribute has such a name.
    "os posix sys subprocess multiprocessing builtins importlib codecs shutil socket ctypes "
    "pickle _pickle marshal inspect runpy pty imp linecache tempfile pathlib threading asyncore"
)

INNER_MODULES: Final = frozenset(name.rpartition(".")[2] for name in BLOCKED_MODULES)
"""Names that no attribute chain from a module may contain."""

EXPRESSIONS: Final = {"query": ("pandas",), "eval": ("pandas", "numexpr")}
"""Methods that evaluate a text, in modules whose other methods are harmless."""

WRITING_ATTRIBUTES: Final = word_set(
    "write writelines write_text write_bytes unlink rmdir remove_file mkdir makedirs touch rename "
    "renames chmod chown symlink_to hardlink_to truncate dump to_csv to_json to_sql to_excel "
    "to_parquet to_hdf savefig save savetxt savez tofile commit executemany executescript "
    "upload upload_file put_object delete_object post patch request send sendall sendto"
)

# Methods such as `data.remove(x)` change only memory, which no level forbids.
DEFINABLE: Final = word_set(
    "__init__ __repr__ __str__ __eq__ __ne__ __lt__ __le__ __gt__ __ge__ __hash__ __len__ "
    "__iter__ __next__ __contains__ __getitem__ __setitem__ __delitem__ __bool__ __call__ "
    "__enter__ __exit__ __aenter__ __aexit__ __aiter__ __anext__ __add__ __radd__ __iadd__ "
    "__sub__ __rsub__ __mul__ __rmul__ __truediv__ __floordiv__ __mod__ __pow__ __neg__ __pos__ "
    "__abs__ __and__ __or__ __xor__ __invert__ __post_init__ __int__ __float__ __index__ "
    "__round__ __reversed__ __matmul__"
)

DECORATORS: Final = word_set(
    "property staticmethod classmethod dataclass dataclasses.dataclass functools.wraps wraps "
    "functools.lru_cache lru_cache functools.cache cache functools.cached_property "
    "cached_property functools.total_ordering total_ordering abstractmethod abc.abstractmethod "
    "enum.unique unique typing.overload overload typing.runtime_checkable runtime_checkable"
)


_READING_MODES: Final = frozenset({"r", "rt", "rb", "tr", "br"})

_NAME_ATTRIBUTE: Final[dict[type[ast.AST], str]] = {
    ast.FunctionDef: "name",
    ast.AsyncFunctionDef: "name",
    ast.ClassDef: "name",
    ast.arg: "arg",
    ast.ExceptHandler: "name",
    ast.MatchAs: "name",
    ast.MatchStar: "name",
    ast.MatchMapping: "rest",
}


def bound_names(node: ast.AST) -> Iterable[str]:
    """Return the names that a node binds."""
    if isinstance(node, ast.Name):
        return (node.id,) if isinstance(node.ctx, ast.Store) else ()
    if isinstance(node, ast.alias):
        return (node.asname or node.name.partition(".")[0],)
    if isinstance(node, ast.Global | ast.Nonlocal):
        return node.names
    name = getattr(node, _NAME_ATTRIBUTE.get(type(node), ""), None)
    return (name,) if isinstance(name, str) else ()


def dotted_name(node: ast.AST) -> str:
    """Return an expression of names and dots as written, or an empty string for any other."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def is_known_dunder(node: ast.Name) -> bool:
    is_load = isinstance(node.ctx, ast.Load)
    return node.id in ("__all__", "__name__" if is_load else "__slots__")


def is_super_init(node: ast.Attribute) -> bool:
    """Return whether a node is `super().__init__` or a similar call of a base class."""
    call = node.value
    return (
        isinstance(call, ast.Call)
        and isinstance(call.func, ast.Name)
        and call.func.id == "super"
        and not call.args
        and node.attr
        in ("__init__", "__post_init__", "__enter__", "__exit__", "__repr__", "__str__")
    )


def is_plain_format(value: ast.AST) -> bool:
    if not (isinstance(value, ast.Constant) and isinstance(value.value, str)):
        return False
    return _has_plain_fields(value.value)


def _has_plain_fields(text: str, depth: int = 0) -> bool:
    try:
        fields = list(string.Formatter().parse(text))
    except ValueError:
        return False
    for _, name, inner, _ in fields:
        if name and not (name.isidentifier() or name.isdigit()):
            return False
        if inner and (depth > 2 or not _has_plain_fields(inner, depth + 1)):
            return False
    return True


def has_one_value(call: ast.Call) -> bool:
    return len(call.args) == 1 and not call.keywords and not isinstance(call.args[0], ast.Starred)


def has_keyword(call: ast.Call, name: str) -> bool:
    return any(each.arg in (name, None) for each in call.keywords)


def only_reads(call: ast.Call) -> bool:
    """Return whether a file is opened with a literal mode that only reads."""
    if any(isinstance(each, ast.Starred) for each in call.args):
        return False
    if any(each.arg not in ("mode", "encoding", "newline", "errors") for each in call.keywords):
        return False
    modes = [*call.args[1:2], *(each.value for each in call.keywords if each.arg == "mode")]
    return len(call.args) <= 2 and all(
        isinstance(mode, ast.Constant) and mode.value in _READING_MODES for mode in modes
    )


def names_a_plain_attribute(call: ast.Call) -> str | None:
    """Return the literal attribute name in a call of `getattr` or a similar function, or None."""
    if len(call.args) not in (2, 3) or call.keywords:
        return None
    match call.args[1]:
        case ast.Constant(value=str(name)) if name.isidentifier():
            return name
        case _:
            return None


MAX_NODES: Final = 50_000
# Whether a Python can read deeper code depends on its version and on the stack of its thread.
MAX_DEPTH: Final = 500
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
class ImportRules:
    """The import rules. Unless `allowed` is None only its modules pass, and `blocked` ones never
    do.

    `trusted` modules are the operator's own, so Comity knows no list of their attributes.
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


def find_violations(code: str, import_rules: ImportRules) -> list[str]:
    """Return all violations in a text, in their order."""
    try:
        tree = ast.parse(code)
    except SyntaxError as flaw:
        return [f"Not Python: line {flaw.lineno or 0} cannot be read"]
    except (ValueError, RecursionError, MemoryError):
        return ["Not Python: it cannot be read"]
    return _CodeScanner(import_rules).scan(tree)


@dataclass(slots=True)
class _CodeScanner:
    import_rules: ImportRules
    # The modules by the names that the code binds them to.
    modules: dict[str, str] = field(default_factory=dict[str, str])
    bound: set[str] = field(default_factory=set[str])
    parents: dict[int, ast.AST] = field(default_factory=dict[int, ast.AST])

    def scan(self, tree: ast.AST) -> list[str]:
        nodes: list[ast.AST] = []
        depths = {id(tree): 0}
        for node in ast.walk(tree):
            nodes.append(node)
            if len(nodes) > MAX_NODES:
                return ["Code too large: it has too many parts"]
            if depths[id(node)] > MAX_DEPTH:
                return ["Code too deep: its parts are nested too far"]
            for child in ast.iter_child_nodes(node):
                self.parents[id(child)] = node
                depths[id(child)] = depths[id(node)] + 1
        for node in nodes:
            self.bound.update(bound_names(node))
            if isinstance(node, ast.Import):
                self._learn(node)
        found = [
            (getattr(node, "lineno", 0), each) for node in nodes for each in self._check_node(node)
        ]
        return [each for _, each in sorted(found, key=lambda pair: pair[0])]

    def _learn(self, node: ast.Import) -> None:
        for alias in node.names:
            if alias.asname is not None:
                self.modules[alias.asname] = alias.name
            else:
                self.modules[alias.name.partition(".")[0]] = alias.name

    def _check_node(self, node: ast.AST) -> Iterator[str]:
        match node:
            case ast.Import():
                yield from filter(
                    None, (self.import_rules.module_problem(a.name) for a in node.names)
                )
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
        problem = (
            "Blocked import: relative" if node.level else self.import_rules.module_problem(module)
        )
        if problem is not None:
            yield problem
            return
        for alias in node.names:
            inner = f"{module}.{alias.name}"
            if alias.name == "*":
                yield f"Blocked import: everything of {module!r}"
            elif self._is_hidden(alias.name) or inner in self.import_rules.blocked:
                yield f"Blocked import: {inner!r}"
            elif not self._offers(module, alias.name):
                yield f"Import not allowed: {inner!r}"

    def _offers(self, module: str, name: str) -> bool:
        """Return whether a module's attribute is known to be harmless.

        At `standard`, every attribute passes except the most dangerous ones.
        """
        blocked = name in BLOCKED_ATTRIBUTES or name in INNER_MODULES
        if blocked and module not in self.import_rules.trusted:
            return False
        if not self.import_rules.is_strict or module in self.import_rules.trusted:
            return True
        known = ALLOWED_MODULES.get(module)
        return f"{module}.{name}" in ALLOWED_MODULES or (known is not None and name in known)

    def _is_hidden(self, name: str) -> bool:
        return name.startswith("_") or name in BLOCKED_NAMES

    def _attribute(self, node: ast.Attribute) -> Iterator[str]:
        module = self._module_at(dotted_name(node.value))
        if module is not None:
            problem = self._module_attribute_problem(module, node.attr)
        else:
            problem = self._attribute_problem(node)
        if problem is not None:
            yield problem
        elif self.import_rules.only_reads and node.attr in WRITING_ATTRIBUTES:
            yield f"Blocked write: {node.attr!r}"

    def _module_attribute_problem(self, module: str, name: str) -> str | None:
        whole = f"{module}.{name}"
        if whole in self.import_rules.blocked:
            return f"Blocked attribute: {whole}"
        if whole in (*self.modules.values(), *ALLOWED_MODULES):
            return None
        if self._is_hidden(name) and name != "__version__":
            return f"Blocked attribute: {whole}"
        return None if self._offers(module, name) else f"Attribute not allowed: {whole}"

    def _attribute_problem(self, node: ast.Attribute) -> str | None:
        name, owner = node.attr, dotted_name(node.value)
        is_own = owner in ("self", "cls")
        hidden = name.startswith("__") or (
            name.startswith("_") and self.import_rules.is_strict and not is_own
        )
        if hidden and not is_super_init(node):
            return f"Blocked attribute: {name!r}"
        if self._is_unreachable(name, owner):
            return f"Blocked attribute: {name!r}"
        if name == "format" and not is_plain_format(node.value):
            return "Blocked attribute: 'format', but on a literal text with plain fields"
        return None

    def _is_unreachable(self, name: str, owner: str) -> bool:
        if name in EXPRESSIONS:
            used = {module.partition(".")[0] for module in self.modules.values()}
            if used & set(EXPRESSIONS[name]):
                return True
        if owner.partition(".")[0] in self.modules and name in INNER_MODULES:
            return True
        return name in BLOCKED_ATTRIBUTES

    def _module_at(self, owner: str) -> str | None:
        """Return the module that an expression of names and dots refers to, or None."""
        if not owner:
            return None
        head, _, rest = owner.partition(".")
        module = self.modules.get(head)
        if module is None:
            return None
        # `import a.b` binds a; `import a.b as c` binds c to a.b.
        first = module.partition(".")[0] if head == module.partition(".")[0] else module
        whole = f"{first}.{rest}" if rest else first
        known = {*self.modules.values(), *ALLOWED_MODULES, first}
        return whole if whole in known else None

    def _name(self, node: ast.Name) -> Iterator[str]:
        name = node.id
        if name in ("open", "getattr", "hasattr"):
            yield from self._named_call(node)
        elif name in BLOCKED_NAMES or (name.startswith("__") and not is_known_dunder(node)):
            yield f"Blocked name: {name!r}"
        elif name == "type" and not self._is_question(node):
            yield "Blocked name: 'type', but to ask for the type of one value"
        elif self.import_rules.is_strict:
            if name in self.modules and not self._is_owner(node):
                yield f"Blocked name: the module {name!r} as a value"
            elif name not in self.bound and name not in BUILTINS:
                yield f"Unknown name: {name!r}"

    def _named_call(self, node: ast.Name) -> Iterator[str]:
        """Check names that pass at `standard` if their arguments are literal."""
        call = self.parents.get(id(node))
        if self.import_rules.is_strict or not isinstance(call, ast.Call) or call.func is not node:
            yield f"Blocked name: {node.id!r}"
        elif node.id == "open":
            if not only_reads(call):
                yield "Blocked name: 'open', but to read"
        else:
            name = names_a_plain_attribute(call)
            owner = dotted_name(call.args[0]) if call.args else ""
            is_plain = name is not None and not name.startswith("_") and name != "format"
            if not is_plain or self._is_unreachable(name or "", owner) or owner in self.modules:
                yield f"Blocked name: {node.id!r}, but with the plain name of an attribute"

    def _is_question(self, node: ast.Name) -> bool:
        call = self.parents.get(id(node))
        if self.import_rules.is_strict:
            return isinstance(call, ast.Call) and call.func is node and has_one_value(call)
        is_annotation = isinstance(call, ast.Subscript | ast.arg | ast.AnnAssign)
        return is_annotation or (
            isinstance(call, ast.Call) and call.func is node and has_one_value(call)
        )

    def _is_owner(self, node: ast.Name) -> bool:
        parent = self.parents.get(id(node))
        return isinstance(parent, ast.Attribute) and isinstance(node.ctx, ast.Load)

    def _definition(self, node: _Named) -> Iterator[str]:
        if node.name.startswith("__") and node.name not in DEFINABLE:
            yield f"Blocked definition: {node.name!r}"
        if node.name in BLOCKED_NAMES:
            yield f"Blocked name: {node.name!r}"
        if getattr(node, "type_params", None):
            yield "Blocked definition: type parameters"
        for decorator in node.decorator_list if self.import_rules.is_strict else ():
            name = dotted_name(decorator.func if isinstance(decorator, ast.Call) else decorator)
            if name not in DECORATORS and name.rpartition(".")[2] not in (
                "setter",
                "deleter",
            ):
                yield f"Blocked decorator: {name or 'an expression'!r}"
        if isinstance(node, ast.ClassDef) and node.keywords:
            yield from self._class_keywords(node)

    def _class_keywords(self, node: ast.ClassDef) -> Iterator[str]:
        for keyword in node.keywords:
            value = dotted_name(keyword.value)
            if keyword.arg in ("frozen", "total", "slots") and isinstance(
                keyword.value, ast.Constant
            ):
                continue
            if not (keyword.arg == "metaclass" and value in ("ABCMeta", "abc.ABCMeta")):
                yield f"Blocked definition: {keyword.arg or '**'!r} of a class"

    def _call(self, node: ast.Call) -> Iterator[str]:
        name = dotted_name(node.func)
        if name in ("wraps", "functools.wraps") and not has_one_value(node):
            yield "Blocked call: wraps with more than the function"
        if self.import_rules.only_reads and name == "print" and has_keyword(node, "file"):
            yield "Blocked write: print to a file"
        if name in ("namedtuple", "collections.namedtuple") and has_keyword(node, "rename"):
            yield "Blocked call: namedtuple with rename"

    def _other(self, node: ast.AST) -> Iterator[str]:
        if type(node) not in _KNOWN:
            yield f"Blocked syntax: {type(node).__name__}"
        elif isinstance(node, ast.MatchClass):
            yield from (
                f"Blocked attribute: {n!r}" for n in node.kwd_attrs if self._is_blocked_attribute(n)
            )
        elif isinstance(node, ast.Global | ast.Nonlocal) and self.import_rules.only_reads:
            yield "Blocked write: to a name outside of the function"
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from self._annotation(node)
        else:
            yield from (
                f"Blocked name: {n!r}" for n in bound_names(node) if self._is_blocked_name(n)
            )

    def _is_blocked_attribute(self, name: str) -> bool:
        return name.startswith("_") or name in BLOCKED_ATTRIBUTES

    def _is_blocked_name(self, name: str) -> bool:
        return name in BLOCKED_NAMES or name.startswith("__") or name == "open"

    def _annotation(self, node: ast.Constant) -> Iterator[str]:
        """Check a string in an annotation, which is code for programs that evaluate type hints."""
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
        within = _CodeScanner(self.import_rules, self.modules, self.bound)
        yield from within.scan(inner)

    def _is_in_annotation(self, node: ast.AST) -> bool:
        child, parent = node, self.parents.get(id(node))
        while parent is not None:
            if child in (getattr(parent, "annotation", None), getattr(parent, "returns", None)):
                return True
            if isinstance(parent, ast.stmt):
                return False
            child, parent = parent, self.parents.get(id(parent))
        return False


MOST_BYTES: Final = 64 * 1024
MAX_BYTES_EVER: Final = 1024 * 1024
MAX_VIOLATIONS: Final = 20
_MAX_ENTRIES: Final = 256
_MAX_ENTRY: Final = 200
PYTHON: Final = word_set("python python3 py py3 cpython ipython")
_SPACE: Final = re.compile(r"\s+")
_COOKIE: Final = re.compile(r"coding[:=]\s*([-\w.]+)")
_HARMLESS_COOKIES: Final = word_set("utf-8 utf8 utf_8 ascii us-ascii")
# Bidirectional controls show a reader another program than the one that runs.
_BIDI: Final = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f\u061c")

# How other languages run commands, load libraries or evaluate text. No parser confirms a match, so
# only the level `standard` relies on these patterns.
_PATTERNS: Final = (
    *("eval(", "exec(", 'function("', "newfunction(", "constructor(", "constructor.constructor"),
    *("child_process", "execsync(", "spawnsync(", "spawn(", "execfile(", "process.binding"),
    *(
        "process.mainmodule",
        "process.dlopen",
        "require(",
        "import(",
        "importscripts(",
        "worker_threads",
    ),
    *("runtime.getruntime", "processbuilder", "system(", "popen(", "shell_exec(", "passthru("),
    *(
        "proc_open(",
        "pcntl_exec",
        "os.execute",
        "io.popen",
        "loadstring(",
        "dofile(",
        "loadlibrary",
    ),
    *("os/exec", "syscall.", "unsafe.pointer", "std::process", "ffi.", "dlopen(", "mprotect("),
    *("kernel.exec", "open3", "instance_eval", "class_eval", "invoke-expression", "start-process"),
    *("downloadstring", "fs.write", "fs.unlink", "fs.rm", "deno.run", "deno.command", "bun.spawn"),
    *(
        "rm-rf",
        "mkfs",
        "/dev/tcp",
        "|sh",
        "|bash",
        "base64-d",
        "curl",
        "wget",
        "`",
        "$(",
        "<%",
        "<?php",
    ),
)


class CodeSafetyLevel(StrEnum):
    """The safety levels of code. (MGP §7.2)"""

    UNRESTRICTED = "unrestricted"
    STANDARD = "standard"
    STRICT = "strict"
    READONLY = "readonly"


_ORDER: Final = tuple(CodeSafetyLevel)


@dataclass(frozen=True, slots=True)
class CodePolicy:
    """The rules for code. `allowed_imports` is empty if there is no such list.

    `more_imports` are modules that an operator allows at every level.
    """

    level: CodeSafetyLevel | None = None
    language: str = ""
    most_bytes: int = 0
    blocked_imports: frozenset[str] = frozenset()
    blocked_patterns: tuple[str, ...] = ()
    allowed_imports: frozenset[str] | None = None
    more_imports: frozenset[str] = frozenset()


UNDECIDED: Final = CodePolicy()


def combine_policies(decided: CodePolicy, declared: Mapping[str, object]) -> CodePolicy:
    """Return the operator's policy, made stricter by the server's declaration, never weaker."""
    said = declared.get("level")
    # An unknown level counts as the strictest.
    asked = (
        None
        if said is None
        else CodeSafetyLevel(said)
        if said in _ORDER
        else CodeSafetyLevel.READONLY
    )
    levels = [each for each in (decided.level, asked) if each is not None]
    size = declared.get("max_code_size_bytes")
    sizes = [decided.most_bytes or MOST_BYTES]
    if isinstance(size, int | float) and not isinstance(size, bool):
        sizes.append(max(0, int(min(size, MAX_BYTES_EVER))))
    elif size is not None:
        sizes.append(0)
    allowed = declared.get("allowed_imports")
    language = decided.language or _text(declared.get("language")) or "python"
    return CodePolicy(
        max(levels, key=_ORDER.index, default=CodeSafetyLevel.STANDARD),
        language.casefold(),
        min(*sizes, MAX_BYTES_EVER),
        decided.blocked_imports | frozenset(_texts(declared.get("blocked_imports"))),
        (*decided.blocked_patterns, *_texts(declared.get("blocked_patterns"))),
        decided.allowed_imports if allowed is None else frozenset(_texts(allowed)),
        decided.more_imports,
    )


def _text(value: object) -> str:
    return value[:_MAX_ENTRY] if isinstance(value, str) else ""


def _texts(value: object) -> list[str]:
    entries = cast("list[object]", value) if isinstance(value, list) else []
    return [text for each in entries[:_MAX_ENTRIES] if (text := _text(each))]


def examine_code(code: str, policy: CodePolicy) -> tuple[str, ...]:
    """Return the violations in their order, or an empty tuple if the code passes."""
    level = policy.level or CodeSafetyLevel.STANDARD
    if level is CodeSafetyLevel.UNRESTRICTED:
        return ()
    flaw = _form_flaw(code, policy.most_bytes)
    if flaw is not None:
        return (flaw,)
    found = [*_pattern_violations(code, policy.blocked_patterns)]
    if policy.language not in PYTHON:
        found += _unread_violations(code, policy, level)
    else:
        found += find_violations(code, _permits(policy, level))
    return tuple(dict.fromkeys(found))[:MAX_VIOLATIONS]


def policy_hints(policy: CodePolicy) -> dict[str, object]:
    """Return what would pass. (MGP §7.4)"""
    level = policy.level or CodeSafetyLevel.STANDARD
    told: dict[str, object] = {
        "level": level,
        "blocked_imports": sorted(policy.blocked_imports | BLOCKED_MODULES - policy.more_imports),
        "max_code_size_bytes": policy.most_bytes,
    }
    if (
        level in (CodeSafetyLevel.STRICT, CodeSafetyLevel.READONLY)
        or policy.allowed_imports is not None
    ):
        told["allowed_imports"] = sorted(_allowed(policy, level) or ())
    return told


def _allowed(policy: CodePolicy, level: CodeSafetyLevel) -> frozenset[str] | None:
    """Return the only modules that may be imported, or None if all but the blocked ones may."""
    kernel = (
        frozenset(ALLOWED_MODULES)
        if level in (CodeSafetyLevel.STRICT, CodeSafetyLevel.READONLY)
        else None
    )
    told = policy.allowed_imports
    if told is not None:
        kernel = told if kernel is None else kernel & told
    return None if kernel is None else (kernel | policy.more_imports) - policy.blocked_imports


def _permits(policy: CodePolicy, level: CodeSafetyLevel) -> ImportRules:
    return ImportRules(
        is_strict=level in (CodeSafetyLevel.STRICT, CodeSafetyLevel.READONLY),
        only_reads=level is CodeSafetyLevel.READONLY,
        allowed=_allowed(policy, level),
        blocked=(BLOCKED_MODULES - policy.more_imports) | policy.blocked_imports,
        trusted=policy.more_imports - policy.blocked_imports,
    )


def _form_flaw(code: str, most_bytes: int) -> str | None:
    """Return a flaw that lets two readers of the text see two different programs, or None."""
    try:
        size = len(code.encode())
    except UnicodeEncodeError:
        return "Blocked text: it holds half of a character"
    if size > most_bytes:
        return f"Code too large: {size} bytes, at most {most_bytes}"
    if code.startswith("\ufeff") or "\ufeff" in code:
        return "Blocked text: a byte order mark"
    for sign in set(code.replace("\r\n", "\n")):
        if (ord(sign) < 32 and sign not in "\t\n") or sign in _BIDI or 127 <= ord(sign) < 160:
            return f"Blocked text: the character U+{ord(sign):04X}"
    for line in [*code.splitlines()[:3], *code.split("\n")[:2]]:
        cookie = _COOKIE.search(line) if "#" in line else None
        if cookie is not None and cookie[1].casefold() not in _HARMLESS_COOKIES:
            return "Blocked text: a declaration of another encoding"
    return None


def _pattern_violations(code: str, patterns: tuple[str, ...]) -> list[str]:
    """Return the violations by patterns, which are plain texts. Spaces do not hide a match."""
    plain = _plain(code)
    return [f"Blocked pattern: {each!r}" for each in patterns if _plain(each) in plain]


def _plain(text: str) -> str:
    return _SPACE.sub("", unicodedata.normalize("NFKC", text)).casefold()


def _unread_violations(code: str, policy: CodePolicy, level: CodeSafetyLevel) -> list[str]:
    if level is not CodeSafetyLevel.STANDARD:
        shown = policy.language[:40].encode("ascii", "backslashreplace").decode()
        return [f"Language not supported at this level: {shown!r}; only Python is supported"]
    plain = _plain(code)
    blocked = [f"Blocked pattern: {each!r}" for each in _PATTERNS if each in plain]
    imports = [
        f"Blocked import: {each!r}"
        for each in sorted(policy.blocked_imports)
        if re.search(rf"\b{re.escape(each)}\b", code)
    ]
    return blocked + imports
