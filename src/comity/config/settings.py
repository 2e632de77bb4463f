"""The frozen settings themselves: what the gateway is told, whatever file it was written in.

A variable, a header, an argument or the tail of a URL may be a secret: none is in a repr.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from types import MappingProxyType
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from comity.config.models import ModelSettings
from comity.config.rooms import RoomSettings
from comity.ports.identity import Issuer
from comity.rules.budgets import Budget
from comity.rules.capabilities import PROPOSE
from comity.rules.channels import Route as ChannelRoute
from comity.rules.channels import Talk
from comity.rules.inference_routes import Route
from comity.rules.policies import ToolPolicy
from comity.rules.pushes import HookRow
from comity.rules.pushes import Row as PushRow
from comity.rules.rates import Limit
from comity.rules.toolbelt import Pinned
from comity.wire.grants import Forbid, Grant

type Transport = Literal["stdio", "http", "sse"]
type Sharing = Literal["shared", "session"]
type Placement = Literal["each", "one"]
type EraChoice = Literal["auto", "handshake", "modern"]
type Containment = Literal["auto", "group", "namespace"]
type RestartPolicy = Literal["never", "on_failure", "always"]
type LogFormat = Literal["text", "json"]
type IdentityMode = Literal["local", "required"]
type DefaultPolicy = Literal["opt-in", "opt-out"]
type ServerDefault = Literal["inherit", "opt-in", "opt-out"]
type RequireApprovalChoice = Literal["auto", "never", "destructive", "dangerous"]
type SuspiciousChoice = Literal["show", "refuse", "strict"]
type FallbackChoice = Literal["auto", "off", "warn", "on"]
type DefinitionsChoice = Literal["first_seen", "approve", "off"]
type ApprovalChoice = Literal["auto", "interactive", "auto_approve", "deny_all", "config_only"]
type JournalArguments = Literal["none", "risky", "all"]
type Elicitations = Literal["client", "inbox"]
type TopicAccess = Literal["public", "restricted", "private"]
type TopicJournal = Literal["none", "mcp", "all"]
type DiscoveryMode = Literal["off", "on"]
type TrustLevel = Literal["trusted", "standard", "sandboxed"]
type SamplingChoice = Literal["ask", "deny", "allow"]
type RegisteredUntil = Literal["session", "deregistered"]

NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Supervision:
    """How a server is cared for while it runs, and what follows when it stops. (MGP §11.5)"""

    restart_policy: RestartPolicy = "on_failure"
    max_restarts: int = 5
    restart_window: timedelta = timedelta(seconds=300)
    backoff_base: timedelta = timedelta(seconds=1)
    backoff_max: timedelta = timedelta(seconds=30)
    # Zero asks never.
    health_interval: timedelta = timedelta(seconds=30)
    drain_deadline: timedelta = timedelta(seconds=30)
    # Zero is no bound; memory is in megabytes.
    stop_when_idle: timedelta = timedelta(0)
    max_memory: int = 0


@dataclass(frozen=True, slots=True, repr=False)
class ServerSettings:
    """One tool server, and how it is reached: by `command`, or at `url`."""

    id: str
    label: str
    transport: Transport
    command: str = ""
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = NOTHING
    cwd: str | None = None
    url: str = ""
    headers: Mapping[str, str] = NOTHING
    sharing: Sharing = "shared"
    placement: Placement = "each"
    disabled: bool = False
    era: EraChoice = "auto"
    containment: Containment = "auto"
    supervision: Supervision = Supervision()
    # What the table `mgp` says, and that table as it was written; empty for standard MCP.
    trust_level: TrustLevel | None = None
    permissions_required: tuple[str, ...] = ()
    extensions: tuple[str, ...] = ()
    mgp: Mapping[str, object] = NOTHING
    # What is so without a grant. Not compared: another one is no reason to start a server anew.
    default_policy: ServerDefault = field(default="inherit", compare=False)
    # What its operator decided of it, as far as anything was; and of its tools.
    policy: Mapping[str, Any] = field(default_factory=dict[str, Any])
    # What it may do beyond answering.
    live: Mapping[str, Any] = field(default_factory=dict[str, Any])
    tools: Mapping[str, ToolPolicy] = field(default_factory=dict[str, ToolPolicy])

    def __repr__(self) -> str:
        reached = f"{len(self.args)} args, env {sorted(self.env)}"
        if self.transport != "stdio":
            reached = f"host {urlsplit(self.url).hostname!r}, headers {sorted(self.headers)}"
        return f"ServerSettings({self.id!r}, {self.transport}, {reached})"


@dataclass(frozen=True, slots=True)
class Settings:
    """All that was decided before the start; `comity.config.tables` says what each is for."""

    servers: tuple[ServerSettings, ...] = ()
    host: str = "127.0.0.1"
    port: int = 2664
    allowed_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    trusted_proxies: tuple[str, ...] = ()
    frame_bytes: int = 4 * 1024 * 1024
    depth: int = 64
    max_values: int = 20_000
    max_server_values: int = 50_000
    call_deadline: timedelta = timedelta(minutes=5)
    call_cap: timedelta = timedelta(hours=1)
    stream_for_progress: bool = True
    start_deadline: timedelta = timedelta(seconds=60)
    send_deadline: timedelta = timedelta(seconds=30)
    parked_deadline: timedelta = timedelta(minutes=10)
    max_parked: int = 1_000
    max_parked_per_principal: int = 100
    idle_session: timedelta = timedelta(minutes=30)
    max_sessions: int = 20_000
    max_sessions_per_principal: int = 1_000
    max_streams_per_principal: int = 1_000
    max_requests_per_principal: int = 256
    max_connections: int = 20_000
    max_connections_per_address: int = 1_000
    header_deadline: timedelta = timedelta(seconds=10)
    keep_alive: timedelta = timedelta(seconds=75)
    shutdown_grace: timedelta = timedelta(seconds=5)
    remote_shutdown: bool = False
    rates: tuple[Limit, ...] = ()
    moderate_cost: int = 1
    dangerous_cost: int = 1
    retry_read_only: int = 0
    log_format: LogFormat = "text"
    traces: bool = False
    tool_timeout: timedelta = timedelta(seconds=30)
    validation_timeout: timedelta = timedelta(seconds=5)
    discovery_timeout: timedelta = timedelta(seconds=2)
    lock_timeout: timedelta = timedelta(milliseconds=500)
    calls_per_server: int = 64
    documentation_url: str = ""
    identity_mode: IdentityMode = "local"
    public_url: str = ""
    accept_auth_member: bool = False
    pepper_file: str = ""
    clock_skew: timedelta = timedelta(seconds=30)
    issuers: tuple[Issuer, ...] = ()
    grants: tuple[Grant, ...] = ()
    forbid: tuple[Forbid, ...] = ()
    default_policy: DefaultPolicy = "opt-in"
    require_approval: RequireApprovalChoice = "auto"
    approve_own: bool = False
    suspicious: SuspiciousChoice = "refuse"
    fallback_validators: FallbackChoice = "auto"
    definitions: DefinitionsChoice = "first_seen"
    approval_policy: ApprovalChoice = "auto"
    # It may hold a password.
    store_url: str = field(default="", repr=False)
    snapshot_max_age: timedelta = timedelta(seconds=30)
    journal_node: str = ""
    journal_arguments: JournalArguments = "risky"
    journal_key_file: str = ""
    checkpoint_file: str = ""
    checkpoint_every: int = 1_000
    checkpoint_within: timedelta = timedelta(seconds=10)
    # Zero keeps everything.
    journal_retention: timedelta = timedelta(0)
    durable_within: timedelta = timedelta(milliseconds=100)
    journal_patience: timedelta = timedelta(seconds=5)
    journal_most_waiting: int = 10_000
    network_proxy: str = ""
    network_no_proxy: tuple[str, ...] = ()
    ask_expires: timedelta = timedelta(minutes=15)
    ask_lasts: timedelta = timedelta(minutes=15)
    ask_hold: timedelta = timedelta(seconds=45)
    ask_declined_for: timedelta = timedelta(minutes=5)
    ask_most_open: int = 10_000
    ask_most_of_one: int = 100
    ask_elicitations: Elicitations = "client"
    # It may hold a secret.
    ask_webhook: str = field(default="", repr=False)
    ask_webhook_secret_file: str = ""
    suggest_after: int = 10
    suggest_people: int = 2
    suggest_span: timedelta = timedelta(days=3)
    suggest_window: timedelta = timedelta(days=30)
    # It may hold a password.
    cluster_url: str = field(default="", repr=False)
    cluster_credentials_file: str = ""
    cluster_authority_file: str = ""
    cluster_allow_open_nats: bool = False
    cluster_node: str = ""
    cluster_name: str = "comity"
    cluster_heartbeat: timedelta = timedelta(seconds=1)
    cluster_dead_after: timedelta = timedelta(seconds=5)
    cluster_lease: timedelta = timedelta(seconds=10)
    topic_access: TopicAccess = "restricted"
    topic_capabilities: tuple[str, ...] = PROPOSE
    topic_members: int = 50
    most_topics: int = 10_000
    # In a minute; zero is no bound.
    topic_messages: int = 60
    topic_chats: int = 10
    envelope_bytes: int = 1024 * 1024
    queue_bytes: int = 1024 * 1024
    topic_grace: timedelta = timedelta(seconds=5)
    topic_journal: TopicJournal = "mcp"
    rooms: tuple[RoomSettings, ...] = ()
    webhook_hosts: tuple[str, ...] = ()
    webhook_ports: tuple[str, ...] = ("443", "8443")
    webhook_lasts: timedelta = timedelta(days=30)
    most_webhooks: int = 10_000
    most_webhooks_of_one: int = 20
    webhook_waiting: int = 10_000
    webhook_deadline: timedelta = timedelta(seconds=10)
    webhook_first_retry: timedelta = timedelta(seconds=5)
    webhook_longest_retry: timedelta = timedelta(hours=1)
    webhook_retry_for: timedelta = timedelta(days=3)
    webhook_disable_after: timedelta = timedelta(days=5)
    webhook_at_once: int = 64
    webhook_at_once_place: int = 4
    discovery_mode: DiscoveryMode = "off"
    pinned_tools: tuple[Pinned, ...] = ()
    tool_tokens: int = 8000
    tool_pinned_reserve: int = 2000
    tool_discovery_reserve: int = 3000
    tool_cache_limit: int = 3000
    tool_results: int = 8
    log_searches: bool = True
    embedder: str = "auto"
    embedder_model: str = ""
    vectors_folder: str = ""
    registration_commands: tuple[str, ...] = ()
    registration_folders: tuple[str, ...] = ()
    registration_hosts: tuple[str, ...] = ()
    registration_from_network: bool = False
    registration_namespace: str = "dynamic"
    registration_most: int = 20
    registration_most_of_one: int = 5
    registration_lives: RegisteredUntil = "session"
    registration_longest: timedelta = timedelta(hours=8)
    registration_keep: bool = False
    registration_creator_may_call: bool = False
    registration_creating: bool = False
    registration_confine: bool = True
    registration_readable: tuple[str, ...] = ()
    registration_writable: tuple[str, ...] = ()
    models: tuple[ModelSettings, ...] = ()
    inference_default: str = ""
    inference_fallbacks: tuple[str, ...] = ()
    inference_sampling: SamplingChoice = "ask"
    inference_deadline: timedelta = timedelta(minutes=5)
    inference_routes: tuple[Route, ...] = ()
    budgets: tuple[Budget, ...] = ()
    channel_rows: tuple[ChannelRoute | Talk, ...] = ()
    push_rows: tuple[PushRow, ...] = ()
    hook_rows: tuple[HookRow, ...] = ()
    # In a minute; zero is no bound.
    push_rate: int = 600
    push_set_rate: int = 0
    push_bytes: int = 256 * 1024
    push_waiting: int = 10_000
    push_remembered: timedelta = timedelta(days=30)
    state_bytes: int = 1024 * 1024
    state_keep: int = 100
    state_keep_for: timedelta = timedelta(days=90)
    state_rollback_deadline: timedelta = timedelta(seconds=30)
    turn_party: str = "agent:host"
    turn_system: str = ""
    turn_before: timedelta = timedelta(seconds=5)
    turn_after: timedelta = timedelta(seconds=10)
    turn_deadline: timedelta = timedelta(minutes=5)
    turn_steps: int = 16
    turn_tools: int = 16
    turn_depth: int = 3
    turn_attempts: int = 3
    turns_at_once: int = 16
    turn_hook_bytes: int = 256 * 1024
    turn_injected_tokens: int = 8_000
    turn_result_length: int = 64 * 1024
    turn_message_length: int = 256 * 1024
    turn_reply_tokens: int = 4_096
    turn_tool_tokens: int = 8_000
    turn_past_turns: int = 50
    turns_kept: timedelta = timedelta(days=90)
