"""The settings of the whole gateway: one field for each table of `comity.toml`.

The path of a setting here is its name in the file: `settings.limits.max_depth` is `max_depth` in
`[limits]`. A variable, a header, an argument or the tail of a URL may be a secret, so no repr shows
them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from comity.accounts.model import AccountMode
from comity.accounts.settings import OAUTH_TYPE
from comity.approvals.settings import ApprovalSettings, SuggestionSettings
from comity.audit.settings import AuditSettings
from comity.catalog.settings import DiscoverySettings
from comity.cluster.settings import ClusterSettings
from comity.config.fields import ConfigField, fields_of, number_type, setting
from comity.events.webhooks.settings import WebhookSettings
from comity.gateway.settings import LimitSettings
from comity.http.settings import HOSTS, NETWORKS, ORIGINS, NetworkSettings, TlsSettings
from comity.identity.settings import IdentitySettings
from comity.inference.model import Budget
from comity.inference.settings import BUDGETS, MODELS, InferenceSettings, ModelSettings
from comity.live.channels.model import ChannelRoute, TopicChatConfig
from comity.live.pushes.model import InboundWebhookConfig, PushRouteRule
from comity.live.settings import CHANNELS, HOOKS, LIVE, PUSHES, StateSettings, TurnSettings
from comity.policy.grants import Grant, Guardrail
from comity.policy.risk import ToolPolicy
from comity.policy.settings import (
    GRANTS_TYPE,
    GUARDRAILS_TYPE,
    POLICY_TYPE,
    TOOLS_TYPE,
    PolicySettings,
)
from comity.registry.settings import RegistrySettings
from comity.secrets.settings import SecretSettings
from comity.servers.packages.model import LockedServer, WrittenEntry
from comity.servers.registration.settings import RegistrationSettings
from comity.servers.sandbox.oci import EngineChoice
from comity.servers.settings import SupervisionSettings
from comity.storage.settings import StoreSettings
from comity.telemetry.settings import TelemetrySettings
from comity.topics.settings import TopicServiceSettings
from comity.views.model import View
from comity.views.settings import VIEWS

type Transport = Literal["stdio", "http", "sse", "openapi"]
type ProcessPer = Literal["gateway", "session"]
type Replicas = Literal["per_node", "single"]
type ProtocolChoice = Literal["auto", "2025-11-25", "2026-07-28"]
type ProcessCleanup = Literal["auto", "group", "namespace"]
type PackageChoice = Literal["auto", "store", "as_written"]
type ServerDefault = Literal["inherit", "deny", "allow"]
type SandboxChoice = Literal["auto", "bubblewrap", "landlock", "basic", "none", "oci"]
type TrustLevel = Literal["trusted", "standard", "sandboxed"]

NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, repr=False)
class ServerSettings:
    """The settings of one server, which Comity reaches by `command`, at `url` or as `openapi`."""

    id: str
    label: str
    transport: Transport
    command: str = ""
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = NOTHING
    cwd: str | None = None
    url: str = ""
    headers: Mapping[str, str] = NOTHING
    # The document of an HTTP API, the operations that become tools, and its credentials.
    openapi: str = ""
    operations: tuple[str, ...] = ()
    auth: Mapping[str, str] = NOTHING
    process_per: ProcessPer = setting(
        "gateway", "One connection for all clients (`gateway`), or one for each (`session`)."
    )
    replicas: Replicas = setting(
        "per_node", "Whether every node of a cluster runs the server, or a single node at a time."
    )
    disabled: bool = setting(False, "Whether Comity leaves the server out.")
    protocol: ProtocolChoice = setting(
        "auto", "The MCP version that Comity uses with it; `auto` detects it."
    )
    process_cleanup: ProcessCleanup = setting(
        "auto", "How Comity ends all its processes; `auto` uses the best way of this machine."
    )
    sandbox: SandboxChoice = setting(
        "auto",
        "How strongly its process is confined to its permissions. With `auto`, a `trusted` server "
        "is not confined. A `sandboxed` one, or one with folders or hosts in its permissions, has "
        "the best level. All others have `policy.sandbox`. With `oci`, `command` is a container "
        "image.",
    )
    packages: PackageChoice = setting(
        "auto",
        "Whether an `npx` or `uvx` command runs from the package store (`store`) or `as_written`. "
        "`auto` uses the store for packages in comity.lock and for confined servers.",
    )
    supervision: SupervisionSettings = field(default_factory=SupervisionSettings)
    # The entry as the file has it, and its approved state; None without a lock file.
    written: WrittenEntry = field(default_factory=WrittenEntry)
    lock: LockedServer | None = None
    # The values of the `mgp` table, and the table as written; empty for standard MCP.
    trust_level: TrustLevel | None = None
    permissions_required: tuple[str, ...] = ()
    extensions: tuple[str, ...] = ()
    mgp: Mapping[str, object] = NOTHING
    # Not compared, because a change of it needs no restart of the server.
    default_policy: ServerDefault = setting(
        "inherit",
        "Calls without a grant: `deny`, `allow`, or `inherit` for `policy.default_policy`.",
        is_live=True,
        is_compared=False,
    )
    account: AccountMode = setting(
        "auto",
        "Whose account its calls use: `each` person's own, a `shared` one, or `none`; `auto` is "
        "`each` once the server demands a sign-in.",
    )
    oauth: Mapping[str, Any] = setting(
        {}, "How Comity signs in to it, if its own metadata is not enough.", OAUTH_TYPE
    )
    policy: Mapping[str, Any] = setting({}, "Its permissions and its trust level.", POLICY_TYPE)
    live: Mapping[str, Any] = setting({}, "Its feature sets and limits, if it speaks MCPL.", LIVE)
    tools: Mapping[str, ToolPolicy] = setting(
        {}, "The policies of single tools, by name or pattern.", TOOLS_TYPE
    )

    def __repr__(self) -> str:
        reached = f"{len(self.args)} args, env {sorted(self.env)}"
        if self.transport != "stdio":
            reached = f"host {urlsplit(self.url).hostname!r}, headers {sorted(self.headers)}"
            reached += f", auth {sorted(self.auth)}" if self.auth else ""
        return f"ServerSettings({self.id!r}, {self.transport}, {reached})"


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings. Fields that are plain settings stand above the first table of the file."""

    servers: tuple[ServerSettings, ...] = ()
    host: str = setting("127.0.0.1", "The address to listen on.")
    port: int = setting(2664, "The port to listen on; 0 takes a free one.", number_type(0, 65535))
    workers: int = setting(
        1, "The processes that serve this port together; each uses one core.", number_type(1, 64)
    )
    allowed_hosts: tuple[str, ...] = setting(
        (), "The hostnames of this gateway, in addition to localhost.", HOSTS
    )
    allowed_origins: tuple[str, ...] = setting(
        (), "The web origins whose pages may call it.", ORIGINS
    )
    trusted_proxies: tuple[str, ...] = setting(
        (),
        "The networks of proxies whose X-Forwarded-For or Forwarded header Comity believes.",
        NETWORKS,
    )
    container_engine: EngineChoice = setting(
        "auto", "The program that runs container images; `auto` is podman, or else docker."
    )
    remote_shutdown: bool = setting(
        False, "Whether an MGP client with the grant admin/write may stop the gateway."
    )
    grants: tuple[Grant, ...] = setting(
        (), "Grants: what each principal may do; the store holds more.", GRANTS_TYPE, is_live=True
    )
    forbid: tuple[Guardrail, ...] = setting(
        (), "Guardrails: calls that no grant can allow.", GUARDRAILS_TYPE, is_live=True
    )
    models: tuple[ModelSettings, ...] = setting((), "The language models.", MODELS)
    budgets: tuple[Budget, ...] = setting((), "The daily limits of principals for models.", BUDGETS)
    channels: tuple[ChannelRoute | TopicChatConfig, ...] = setting(
        (), "The routes of channel messages, and of the replies of models.", CHANNELS
    )
    pushes: tuple[PushRouteRule, ...] = setting(
        (), "The routes of pushed events; the first entry that matches applies.", PUSHES
    )
    inbound_webhooks: tuple[InboundWebhookConfig, ...] = setting(
        (), "The inbound webhooks at /hooks/NAME, and the routes of their events.", HOOKS
    )
    views: tuple[View, ...] = setting(
        (), "The views: named subsets of tools, each at /views/NAME/mcp.", VIEWS, is_live=True
    )
    limits: LimitSettings = field(default_factory=LimitSettings)
    telemetry: TelemetrySettings = field(default_factory=TelemetrySettings)
    registry: RegistrySettings = field(default_factory=RegistrySettings)
    identity: IdentitySettings = field(default_factory=IdentitySettings)
    policy: PolicySettings = field(default_factory=PolicySettings)
    secrets: SecretSettings = field(default_factory=SecretSettings)
    store: StoreSettings = field(default_factory=StoreSettings)
    audit: AuditSettings = field(default_factory=AuditSettings)
    approvals: ApprovalSettings = field(default_factory=ApprovalSettings)
    suggestions: SuggestionSettings = field(default_factory=SuggestionSettings)
    cluster: ClusterSettings = field(default_factory=ClusterSettings)
    topics: TopicServiceSettings = field(default_factory=TopicServiceSettings)
    discovery: DiscoverySettings = field(default_factory=DiscoverySettings)
    registration: RegistrationSettings = field(default_factory=RegistrationSettings)
    webhooks: WebhookSettings = field(default_factory=WebhookSettings)
    inference: InferenceSettings = field(default_factory=InferenceSettings)
    turns: TurnSettings = field(default_factory=TurnSettings)
    state: StateSettings = field(default_factory=StateSettings)
    network: NetworkSettings = field(default_factory=NetworkSettings)
    tls: TlsSettings = field(default_factory=TlsSettings)
    # The values of each ${secret:NAME} in the configuration, for the redaction.
    secret_values: tuple[str, ...] = field(default=(), repr=False, compare=False)
    # The files of the settings. A server that could write them would set its own rights.
    config_files: tuple[Path, ...] = field(default=(), compare=False)


def replace_settings(settings: Settings, changes: Mapping[str, Any]) -> Settings:
    """Return the settings with other values, each by its full name, such as `limits.max_depth`."""
    for name, value in changes.items():
        table, _, key = name.rpartition(".")
        other = {key: value}
        if table:
            other = {table: replace(getattr(settings, table), **other)}
        settings = replace(settings, **other)
    return settings


TABLES: Final[Mapping[str, type]] = {
    "": Settings,
    **{
        each.name: each.type
        for each in fields(Settings)
        if isinstance(each.type, type) and is_dataclass(each.type)
    },
}
"""Every table of `comity.toml` and the class that declares it; "" is above the first table."""

SERVER_FIELDS: Final[Mapping[str, ConfigField]] = {
    **fields_of(ServerSettings),
    **fields_of(SupervisionSettings),
}
"""The settings of one server, apart from those that say how to reach it."""
