"""What Python code may name: the modules, attributes and built-in names on either list."""

from typing import Final

from comity.rules.options import words

BLOCKED_MODULES: Final = words(
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
    "abc": words("ABC abstractmethod"),
    "asyncio": words(
        "sleep gather wait_for Queue Lock Event Semaphore TimeoutError create_task run timeout "
        "TaskGroup CancelledError iscoroutinefunction as_completed"
    ),
    "base64": words(
        "b64encode b64decode urlsafe_b64encode urlsafe_b64decode b32encode b32decode b16encode "
        "b16decode standard_b64encode standard_b64decode"
    ),
    "bisect": words("bisect bisect_left bisect_right insort insort_left insort_right"),
    "calendar": words(
        "isleap leapdays monthrange weekday day_name month_name timegm monthcalendar"
    ),
    "collections": words("Counter defaultdict deque OrderedDict ChainMap namedtuple"),
    "collections.abc": words(
        "Iterable Iterator Mapping MutableMapping Sequence MutableSequence Set Callable Generator "
        "Awaitable Hashable Sized Container Collection AsyncIterator AsyncIterable Coroutine"
    ),
    "cmath": words("sqrt exp log log10 phase polar rect pi e sin cos tan inf nan isnan isinf"),
    "dataclasses": words("dataclass field asdict astuple replace fields is_dataclass"),
    "datetime": words("datetime date time timedelta timezone UTC MINYEAR MAXYEAR tzinfo"),
    "decimal": words(
        "Decimal ROUND_HALF_UP ROUND_HALF_EVEN ROUND_DOWN ROUND_UP getcontext localcontext "
        "InvalidOperation DivisionByZero Context ROUND_CEILING ROUND_FLOOR"
    ),
    "difflib": words("get_close_matches SequenceMatcher unified_diff ndiff context_diff"),
    "enum": words("Enum IntEnum StrEnum Flag IntFlag auto unique"),
    "fractions": words("Fraction"),
    "functools": words(
        "lru_cache cache wraps partial reduce cmp_to_key total_ordering cached_property"
    ),
    "hashlib": words("sha256 sha512 sha1 md5 sha224 sha384 blake2b blake2s sha3_256 sha3_512"),
    "heapq": words("heappush heappop heapify heappushpop heapreplace nlargest nsmallest merge"),
    "hmac": words("compare_digest digest"),
    "html": words("escape unescape"),
    "itertools": words(
        "accumulate batched chain combinations combinations_with_replacement compress count "
        "cycle dropwhile filterfalse groupby islice pairwise permutations product repeat starmap "
        "takewhile tee zip_longest"
    ),
    "json": words("dumps loads JSONDecodeError"),
    "math": words(
        "acos acosh asin asinh atan atan2 atanh cbrt ceil comb copysign cos cosh degrees dist e "
        "erf erfc exp exp2 expm1 fabs factorial floor fmod frexp fsum gamma gcd hypot inf "
        "isclose isfinite isinf isnan isqrt lcm ldexp lgamma log log10 log1p log2 modf nan "
        "nextafter perm pi pow prod radians remainder sin sinh sqrt sumprod tan tanh tau trunc "
        "ulp"
    ),
    "random": words(
        "random randint choice choices shuffle sample uniform gauss normalvariate randrange seed "
        "Random triangular betavariate expovariate"
    ),
    "re": words(
        "compile match search fullmatch sub subn split findall finditer escape IGNORECASE I "
        "MULTILINE M DOTALL S VERBOSE X ASCII A Pattern Match error"
    ),
    "statistics": words(
        "mean fmean median median_low median_high mode multimode stdev pstdev variance pvariance "
        "quantiles correlation covariance linear_regression harmonic_mean geometric_mean"
    ),
    "string": words(
        "ascii_letters ascii_lowercase ascii_uppercase digits hexdigits octdigits punctuation "
        "printable whitespace capwords Template"
    ),
    "struct": words("pack unpack calcsize unpack_from iter_unpack"),
    "textwrap": words("dedent indent fill wrap shorten"),
    "time": words("time sleep monotonic perf_counter strftime gmtime localtime time_ns mktime"),
    "typing": words(
        "Any Union Optional List Dict Set Tuple Callable Iterable Iterator Sequence Mapping "
        "Literal TypeVar Generic Final ClassVar NamedTuple TypedDict Protocol Annotated cast "
        "Self NoReturn Awaitable AsyncIterator Generator Never TypeAlias runtime_checkable "
        "overload FrozenSet Type"
    ),
    "unicodedata": words("normalize category name combining numeric decimal east_asian_width"),
    "urllib.parse": words(
        "urlparse urlsplit quote unquote quote_plus urlencode urljoin parse_qs parse_qsl"
    ),
    "uuid": words("uuid4 uuid3 uuid5 UUID NAMESPACE_DNS NAMESPACE_URL"),
    "zoneinfo": words("ZoneInfo"),
}

BUILTINS: Final = words(
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

BLOCKED_NAMES: Final = words(
    "eval exec compile __import__ execfile input raw_input getattr setattr delattr hasattr vars "
    "globals locals dir breakpoint memoryview exit quit help copyright credits license reload "
    "__builtins__ __loader__ __spec__ __file__ __doc__ __package__ __build_class__ __debug__ "
    "attrgetter methodcaller itemgetter get_type_hints ForwardRef make_dataclass update_wrapper "
    "singledispatch singledispatchmethod Formatter import_module find_spec run_path run_module"
)

BLOCKED_ATTRIBUTES: Final = words(
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
) | words(
    # Modules that other modules hold on to, where no honest attribute has such a name
    "os posix sys subprocess multiprocessing builtins importlib codecs shutil socket ctypes "
    "pickle _pickle marshal inspect runpy pty imp linecache tempfile pathlib threading asyncore"
)

INNER_MODULES: Final = frozenset(name.rpartition(".")[2] for name in BLOCKED_MODULES)
"""What no chain of attributes that begins with a module may come by."""

EXPRESSIONS: Final = {"query": ("pandas",), "eval": ("pandas", "numexpr")}
"""Methods that evaluate a text, of modules whose other methods are honest."""

WRITING_ATTRIBUTES: Final = words(
    "write writelines write_text write_bytes unlink rmdir remove_file mkdir makedirs touch rename "
    "renames chmod chown symlink_to hardlink_to truncate dump to_csv to_json to_sql to_excel "
    "to_parquet to_hdf savefig save savetxt savez tofile commit executemany executescript "
    "upload upload_file put_object delete_object post patch request send sendall sendto"
)

# `data.remove(x)` and its like change what is in memory, which no level forbids.
DEFINABLE: Final = words(
    "__init__ __repr__ __str__ __eq__ __ne__ __lt__ __le__ __gt__ __ge__ __hash__ __len__ "
    "__iter__ __next__ __contains__ __getitem__ __setitem__ __delitem__ __bool__ __call__ "
    "__enter__ __exit__ __aenter__ __aexit__ __aiter__ __anext__ __add__ __radd__ __iadd__ "
    "__sub__ __rsub__ __mul__ __rmul__ __truediv__ __floordiv__ __mod__ __pow__ __neg__ __pos__ "
    "__abs__ __and__ __or__ __xor__ __invert__ __post_init__ __int__ __float__ __index__ "
    "__round__ __reversed__ __matmul__"
)

DECORATORS: Final = words(
    "property staticmethod classmethod dataclass dataclasses.dataclass functools.wraps wraps "
    "functools.lru_cache lru_cache functools.cache cache functools.cached_property "
    "cached_property functools.total_ordering total_ordering abstractmethod abc.abstractmethod "
    "enum.unique unique typing.overload overload typing.runtime_checkable runtime_checkable"
)
