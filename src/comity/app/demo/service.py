"""Runs `comity demo`: the gateway, its sample agents, and the guide through a first approval."""

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, cast

from comity.app.demo.servers import LIVE_FEATURES, RISKS, SERVERS
from comity.app.demo.traffic import (
    ADVISER,
    CALLS_BY_AGENT,
    TOPIC,
    ask_for_refund,
    run_agent,
    run_topic,
)
from comity.app.gateway import GatewayParts, assemble_gateway
from comity.app.reload import follow_settings
from comity.app.serve import GatewayRecordFile, listener_limits
from comity.app.settings_reader import ConfigSource
from comity.approvals.model import ApprovalRequest, ApprovalState
from comity.approvals.presentation import approval_command
from comity.cli.api_client import new_token, prepare_folder
from comity.config.toml_writer import toml_value
from comity.console.endpoint import NO_CONSOLE, is_console_built
from comity.errors import MalformedMessage, Misconfigured, Unavailable
from comity.http.server import ShutdownHooks, event_loop, run_http_server
from comity.identity.login.api import link_path
from comity.mcp.actors import LOCAL_OPERATOR
from comity.sdk.agent_results import AgentRefusal

log = logging.getLogger(__name__)

DEFAULT_PORT: Final = 2664
START_TIMEOUT: Final = timedelta(seconds=60)
APPROVAL_PATIENCE: Final = timedelta(minutes=20)
_MARK: Final = "# `comity demo` wrote this file, and writes it again."
_GUIDED_AGENT: Final = "agent:billing"
_GUIDED_TOOL: Final = ("payments", "refund")
_SHORT_ID_LENGTH: Final = 13
"""The time of a request, and a little more, so that another one of this moment is none."""

type Print = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """The options of the command. Without `folder`, a temporary one is removed at the end."""

    port: int | None = None
    folder: Path | None = None
    has_traffic: bool = True
    # Whether the demo ends after the guided approval.
    is_short: bool = False


def run_demo(options: DemoOptions, echo: Print) -> None:
    """Run the demo until the guided approval was answered, or until it is stopped."""
    prepare_folder()
    with _demo_folder(options.folder) as folder:
        config = folder / "comity.toml"
        _write_config(config)
        _log_into(folder / "gateway.log")
        # The variables of the user's own gateway mean another one.
        port = free_port() if options.port is None else options.port
        source = ConfigSource(folder, folder, {}, config, {"port": port}, needs_trust=False)
        with asyncio.Runner(loop_factory=event_loop) as runner:
            runner.run(DemoGateway(source, config, options, echo).run())


@contextmanager
def _demo_folder(kept: Path | None) -> Generator[Path]:
    if kept is not None:
        kept.mkdir(parents=True, exist_ok=True)
        yield kept.resolve()
        return
    made = Path(tempfile.mkdtemp(prefix="comity-demo-"))
    try:
        yield made
    finally:
        logging.shutdown()
        shutil.rmtree(made, ignore_errors=True)


def _write_config(config: Path) -> None:
    """Write the configuration of the demo. Raises Misconfigured for a file of the user."""
    if config.is_symlink() or (config.exists() and not _is_of_demo(config)):
        raise Misconfigured(
            f"{config} exists, and no demo wrote it; name another folder with --keep"
        )
    config.write_text(demo_config(config.parent), encoding="utf-8")


def _is_of_demo(config: Path) -> bool:
    try:
        with config.open("rb") as file:
            return file.readline(len(_MARK) + 1) == f"{_MARK}\n".encode()
    except OSError:
        return False


def _log_into(file: Path) -> None:
    """Write the log into a file, so that the terminal shows the guide alone."""
    handler = logging.FileHandler(file, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)


def free_port() -> int:
    """Return the usual port, or 0 for any other if a program uses it."""
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(("127.0.0.1", DEFAULT_PORT))
        except OSError:
            return 0
    return DEFAULT_PORT


def demo_config(folder: Path) -> str:
    """Return the configuration of the sample gateway."""
    lines = [
        _MARK,
        "[policy]",
        'default_policy = "deny"',
        'require_approval = "dangerous"',
        "[store]",
        f"url = {toml_value(f'sqlite:///{folder}/demo.db')}",
    ]
    for name in SERVERS:
        args = ["-m", "comity.app.demo.servers", name]
        lines += [
            "[[servers]]",
            f"id = {toml_value(name)}",
            f"command = {toml_value(sys.executable)}",
            f"args = {toml_value(args)}",
            'restart_policy = "always"',
            # The demo may run for hours, with a crash each minute.
            "max_restarts = 1000",
        ]
        # A server's own word about its risk is not enough, so the operator says it.
        for tool, risk in RISKS[name].items():
            lines += [f"[servers.tools.{tool}]", f"risk = {toml_value(risk)}"]
        if name == _LIVE_SERVER:
            lines += _LIVE_TABLE
    for subject, verb, target in _GRANTS:
        lines += [
            "[[grants]]",
            f"subject = {toml_value(subject)}",
            f"verb = {toml_value(verb)}",
            f"target = {toml_value(target)}",
        ]
    return "\n".join([*lines, *_VIEWS, *_TOPIC_AND_MODELS]) + "\n"


_LIVE_SERVER: Final = "orders"
_LIVE_TABLE: Final = (
    "[servers.live]",
    f"enabled = {toml_value([each for each in LIVE_FEATURES if each != 'orders.export'])}",
    "rewrites = true",
)
_GRANTS: Final = (
    ("agent:research", "tools/call", "notes/*"),
    ("agent:research", "tools/call", "reports/*"),
    ("agent:research", "tools/call", "flaky/*"),
    ("agent:billing", "tools/call", "payments/*"),
    ("agent:billing", "tools/call", "notes/*"),
    ("agent:billing", "tools/call", "flaky/*"),
    ("agent:billing", "tools/call", "orders/*"),
    (ADVISER, "topic/send", f"{TOPIC}/mcp/request:*"),
)
_VIEWS: Final = (
    "[[views]]",
    'name = "billing"',
    'title = "Billing"',
    'description = "Invoices, refunds and the notes about them."',
    'select = ["payments/*", "notes/search_notes"]',
    "[[views.tools]]",
    'tool = "payments/refund"',
    'name = "refund_customer"',
    'description = "Pay an amount back to a customer."',
    "[[views]]",
    'name = "research"',
    'title = "Research"',
    'select = ["notes/*", "reports/*"]',
)
_TOPIC_AND_MODELS: Final = (
    "[[topics.overrides]]",
    f"name = {toml_value(TOPIC)}",
    'access = "public"',
    'servers = ["payments"]',
    "[[channels]]",
    f"topic = {toml_value(TOPIC)}",
    'respond_to = "addressed"',
    "[[channels]]",
    'server = "orders"',
    'channel = "mail:**"',
    'to = "nothing"',
    "[[pushes]]",
    'from = "orders/orders.returns"',
    'to = "turn"',
    'conversation = "returns"',
    # Events of this set come as soon as the person enables it.
    "[[pushes]]",
    'from = "orders/orders.export"',
    'to = "nothing"',
    "[[models]]",
    'id = "quick"',
    'api = "demo"',
    "price_input = 0.4",
    "price_output = 1.6",
    "[[models]]",
    'id = "thorough"',
    'api = "demo"',
    "price_input = 3",
    "price_output = 15",
    "[inference]",
    'default = "quick"',
    "[[inference.routes]]",
    'conversation = "returns"',
    'model = "thorough"',
    "[[budgets]]",
    'principal = "*"',
    "shared = true",
    "money_per_day = 1",
    "[state]",
    "max_checkpoints = 20",
)


class DemoGateway:
    """One run of the demo."""

    def __init__(
        self, source: ConfigSource, config: Path, options: DemoOptions, echo: Print
    ) -> None:
        self._source = source
        self._loaded_config = source.load()
        self._settings = self._loaded_config.settings
        self._config = config
        self._options = options
        self._echo = echo

    async def run(self) -> None:
        token = new_token()
        record = GatewayRecordFile(self._config, token)
        async with (
            assemble_gateway(self._settings, operator_token=token) as parts,
            follow_settings(
                self._source,
                self._loaded_config,
                parts.config_state,
                parts.upstream_registry,
                log.info,
                parts.apply_settings,
            ),
        ):
            origin: asyncio.Future[str] = asyncio.get_running_loop().create_future()
            guide = asyncio.ensure_future(self._guide(parts, origin, token))
            guide.add_done_callback(_stop_process)

            def listening(address: str) -> None:
                parts.approval_components.set_origin(address)
                record.write(address)
                origin.set_result(address)

            def begin_shutdown() -> None:
                guide.cancel()
                parts.end_streams()

            with contextlib.closing(record):
                await run_http_server(
                    parts.http_app,
                    self._settings.host,
                    self._settings.port,
                    limits=listener_limits(self._settings),
                    started=listening,
                    shutdown=ShutdownHooks(begin_shutdown, parts.active_calls.interrupt),
                    tls=None,
                )
            await asyncio.gather(guide, return_exceptions=True)
        if not guide.cancelled():
            # An error of the guide is an error of the demo.
            guide.result()

    async def _guide(self, parts: GatewayParts, origin: "asyncio.Future[str]", token: str) -> None:
        address = await origin
        await parts.servers.wait_for_first_starts(START_TIMEOUT)
        keys = {name: await _make_key(parts, name) for name in CALLS_BY_AGENT}
        self._introduce(parts, address)
        async with _background(
            [
                *(run_agent(f"{address}/mcp", name, key) for name, key in keys.items()),
                run_topic(address, keys, token),
            ]
            if self._options.has_traffic
            else []
        ):
            await self._lead_through_approval(parts, address, keys[_GUIDED_AGENT])
            if not self._options.is_short:
                self._echo("The agents go on. Press Ctrl-C to end the demo.")
                await asyncio.Event().wait()

    def _introduce(self, parts: GatewayParts, address: str) -> None:
        agents = f"{', '.join(CALLS_BY_AGENT)} (in the topic `{TOPIC}`)"
        is_kept = self._options.folder is not None
        folder = self._config.parent if is_kept else "a temporary folder, removed at the end"
        self._echo(f"Comity runs at {address} in local mode.")
        self._echo(f"  Servers  {', '.join(SERVERS)}")
        self._echo(f"  Agents   {agents if self._options.has_traffic else 'none'}")
        self._echo("  Models   quick, thorough (samples with fixed answers)")
        self._echo(f"  Data     {folder}")
        if not is_console_built():
            self._echo(NO_CONSOLE)
            return
        # On a line of its own, however long, because it is opened or copied.
        self._echo("Open the console, once within ten minutes:")
        self._echo(f"  {console_link(parts, address)}")

    async def _lead_through_approval(self, parts: GatewayParts, address: str, key: str) -> None:
        approvals = parts.approval_components.approvals
        asked: asyncio.Future[ApprovalRequest] = asyncio.get_running_loop().create_future()

        def on_change(request: ApprovalRequest) -> None:
            is_guided = (request.asker, request.server, request.tool) == (
                _GUIDED_AGENT,
                *_GUIDED_TOOL,
            )
            if is_guided and not asked.done():
                asked.set_result(request)

        approvals.watchers.append(on_change)
        url = f"{address}/mcp"
        calling = asyncio.ensure_future(ask_for_refund(url, key, APPROVAL_PATIENCE))
        try:
            await asyncio.wait((calling, asked), return_when=asyncio.FIRST_COMPLETED)
            if asked.done():
                self._ask_person(asked.result(), address)
            found = await calling
        finally:
            calling.cancel()
            approvals.watchers.remove(on_change)
        last = await approvals.store.get(asked.result().id) if asked.done() else None
        self._tell_outcome(last, found.reason if isinstance(found, AgentRefusal) else found.text)

    def _ask_person(self, request: ApprovalRequest, address: str) -> None:
        command = approval_command(request.id[:_SHORT_ID_LENGTH], address).strip("`")
        self._echo(f"{_GUIDED_AGENT} asks to refund 40 EUR. Only you can allow that:")
        self._echo(f"  open {address}/approvals/{request.id}")
        self._echo(f"  or run {command}")

    def _tell_outcome(self, request: ApprovalRequest | None, said: str) -> None:
        state = None if request is None else request.state
        told = {
            ApprovalState.CONSUMED: "You approved it, so Comity sent the call.",
            ApprovalState.APPROVED: "You approved it, so Comity sent the call.",
            ApprovalState.DENIED: "You denied it, so the call did not run.",
            ApprovalState.EXPIRED: "The request expired, so the call did not run.",
        }.get(cast("ApprovalState", state), "The call is over.")
        self._echo(told)
        self._echo(f"  {_GUIDED_AGENT} got: {said.splitlines()[0][:50] if said else 'nothing'}")
        self._echo("  `comity audit list` shows every step of it.")


def console_link(parts: GatewayParts, address: str) -> str:
    """Return the link that signs the operator in, once."""
    token, _ = parts.login.make_link()
    return f"{address}{link_path(token)}"


async def _make_key(parts: GatewayParts, name: str) -> str:
    """Create a sample principal with an API key, and return the key."""
    with contextlib.suppress(MalformedMessage):  # a kept folder has it from an earlier run
        await _post(parts, "/api/principals", {"id": name, "label": "a sample of comity demo"})
    made = await _post(parts, "/api/keys", {"principal": name, "label": "comity demo"})
    return str(made["key"])


async def _post(parts: GatewayParts, path: str, body: dict[str, object]) -> Mapping[str, Any]:
    return await parts.api.answer("POST", path, body, LOCAL_OPERATOR)


@asynccontextmanager
async def _background(work: list[Any]) -> AsyncGenerator[None]:
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        for ended in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(ended, Exception) and not isinstance(ended, Unavailable):
                log.error("A sample agent failed", exc_info=ended)


def _stop_process(guide: asyncio.Task[None]) -> None:
    """Stop the gateway after its guide has ended. A cancelled guide ends with the gateway."""
    if not guide.cancelled():
        os.kill(os.getpid(), signal.SIGTERM)
