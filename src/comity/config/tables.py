"""Every setting as a row: where it stands, how it is read, what it is for."""

from datetime import timedelta
from typing import Final

from comity.config.addresses import NETWORKS, STORE_URL
from comity.config.channels import CHANNELS
from comity.config.grants import FORBIDS, GRANTS
from comity.config.inference import INFERENCE
from comity.config.issuers import ISSUERS, PUBLIC_URL
from comity.config.kinds import (
    DURATION,
    DURATION_OR_NEVER,
    TEXT,
    TRUTH,
    Kind,
    Value,
    number,
    one_of,
    texts,
    whole,
)
from comity.config.live_servers import LIVE
from comity.config.meaning import MEANING
from comity.config.policies import POLICY, TOOLS
from comity.config.pushes import PUSHES
from comity.config.rates import RATES
from comity.config.registration import REGISTRATION
from comity.config.setting import Setting
from comity.config.settings import ServerSettings, Settings, Supervision
from comity.config.states import STATES
from comity.config.toolbelts import TOOLBELTS
from comity.config.turns import TURNS
from comity.config.wide import CLUSTER, TOPICS, WEBHOOKS

_COUNT: Final = number(1, 10_000_000)
_HOSTS: Final = texts(r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]", "gateway.example.org, without a port")
_ORIGINS: Final = texts(r"[A-Za-z][A-Za-z0-9+.-]*://[^/\s]+", "https://app.example.org")
_NAMES: Final = texts(r"\S+", "a name, as network.outbound")
_COST: Final = number(1, 10_000)
_RESTARTS: Final = number(0, 1_000_000)
_POLICY: Final = one_of("never", "on_failure", "always")

TABLES: Final = (
    *("limits", "telemetry", "registry", "identity", "policy", "store", "journal", "asks"),
    *("suggestions", "cluster", "topics", "discovery", "registration", "webhooks", "inference"),
    *("turns", "state", "network"),
)
_NETWORK: Final = (
    Setting(
        "proxy",
        "network",
        TEXT,
        "the HTTP proxy for outgoing connections; unless set, HTTPS_PROXY and HTTP_PROXY decide",
        "network_proxy",
    ),
    Setting(
        "no_proxy",
        "network",
        texts(r"\S+", "a host, a domain or a network, as 10.0.0.0/8"),
        "hosts that are reached without the proxy; unless set, NO_PROXY decides",
        "network_no_proxy",
    ),
)
_JOURNAL: Final = (
    Setting("node", "journal", TEXT, "what this node's chain is called", "journal_node"),
    Setting(
        "arguments",
        "journal",
        one_of("none", "risky", "all"),
        "of which calls the arguments are kept, without secrets; a digest is kept of all",
        "journal_arguments",
    ),
    Setting("key_file", "journal", TEXT, "the file of the key that signs", "journal_key_file"),
    Setting("checkpoint_file", "journal", TEXT, "a file elsewhere that signatures are copied to"),
    Setting("checkpoint_every", "journal", _COUNT, "after how many entries it is signed"),
    Setting("checkpoint_within", "journal", DURATION, "how long entries may stay unsigned"),
    Setting(
        "retention",
        "journal",
        DURATION_OR_NEVER,
        "how long entries are kept; 0 keeps them for good",
        "journal_retention",
    ),
    Setting("durable_within", "journal", DURATION, "how soon entries of safe calls are kept"),
    Setting(
        "patience",
        "journal",
        DURATION,
        "how long a risky call waits for a store that does not answer",
        "journal_patience",
    ),
    Setting(
        "most_waiting",
        "journal",
        _COUNT,
        "how many entries may wait for it; then no call goes on",
        "journal_most_waiting",
    ),
)
_SUGGESTIONS: Final = (
    Setting(
        "decisions",
        "suggestions",
        number(2, 10_000),
        "how many equal approvals suggest a grant",
        "suggest_after",
    ),
    Setting(
        "people", "suggestions", number(1, 100), "by how many people at least", "suggest_people"
    ),
    Setting(
        "span", "suggestions", DURATION, "or else over how long a time at least", "suggest_span"
    ),
    Setting(
        "window", "suggestions", DURATION, "how far back decisions are looked at", "suggest_window"
    ),
)
_ASKS: Final = (
    Setting("expires", "asks", DURATION, "how long a question can be answered", "ask_expires"),
    Setting("lasts", "asks", DURATION, "how long an approval can be used", "ask_lasts"),
    Setting("hold", "asks", DURATION, "how long a client without news is kept", "ask_hold"),
    Setting(
        "declined_for",
        "asks",
        DURATION,
        "how long the same call is declined without asking again",
        "ask_declined_for",
    ),
    Setting("most_open", "asks", _COUNT, "how many may be open at once", "ask_most_open"),
    Setting("most_of_one", "asks", _COUNT, "of them, by one party", "ask_most_of_one"),
    Setting(
        "elicitations",
        "asks",
        one_of("client", "inbox"),
        "who answers a server when the client cannot be asked: nobody, or the inbox",
        "ask_elicitations",
    ),
    Setting("webhook", "asks", TEXT, "where new asks are posted to", "ask_webhook"),
    Setting(
        "webhook_secret_file",
        "asks",
        TEXT,
        "the file of the secret that those posts are signed with",
        "ask_webhook_secret_file",
    ),
)
SETTINGS: Final = (
    Setting("host", "", TEXT, "the address to listen on"),
    Setting("port", "", number(0, 65535), "the port to listen on; 0 takes a free one"),
    Setting("allowed_hosts", "", _HOSTS, "names this gateway is called by, beside localhost"),
    Setting("allowed_origins", "", _ORIGINS, "web origins whose pages may call it"),
    Setting(
        "trusted_proxies",
        "",
        NETWORKS,
        "networks of proxies whose X-Forwarded-For or Forwarded header is believed",
    ),
    Setting("frame_bytes", "limits", number(1024, 2**30), "the longest message that is read"),
    Setting("depth", "limits", number(8, 512), "how deeply a message may be nested"),
    Setting("max_values", "limits", _COUNT, "values in one message of a client"),
    Setting("max_server_values", "limits", _COUNT, "values in one message of a server"),
    Setting("call_deadline", "limits", DURATION, "how long a call may show no progress"),
    Setting("call_cap", "limits", DURATION, "how long a call may last, with progress"),
    Setting(
        "stream_for_progress",
        "limits",
        TRUTH,
        "whether tools that stream do so for clients that only know MCP's progress",
    ),
    Setting("start_deadline", "limits", DURATION, "how long a server may take to start"),
    Setting("send_deadline", "limits", DURATION, "how long a server may leave a message unread"),
    Setting("parked_deadline", "limits", DURATION, "how long a call waits for somebody's answer"),
    Setting("max_parked", "limits", _COUNT, "calls that wait for somebody's answer at once"),
    Setting("max_parked_per_principal", "limits", _COUNT, "of them, of one principal"),
    Setting("idle_session", "limits", DURATION, "when an unused client session ends"),
    Setting("max_sessions", "limits", _COUNT, "client sessions open at once"),
    Setting("max_sessions_per_principal", "limits", _COUNT, "of them, of one principal"),
    Setting(
        "max_streams_per_principal", "limits", _COUNT, "event streams of one principal at once"
    ),
    Setting(
        "max_requests_per_principal",
        "limits",
        _COUNT,
        "requests of one principal that are not answered yet",
    ),
    Setting("max_connections", "limits", _COUNT, "client connections open at once"),
    Setting("max_connections_per_address", "limits", _COUNT, "of them, from one remote address"),
    Setting("header_deadline", "limits", DURATION, "how long a request's head may take"),
    Setting("keep_alive", "limits", DURATION, "how long an idle connection is kept"),
    Setting("shutdown_grace", "limits", DURATION, "what open requests get at the end"),
    Setting("remote_shutdown", "", TRUTH, "whether an MGP client with admin/write may end it"),
    Setting(
        "rates",
        "limits",
        RATES,
        "how many calls whoever may make of what, in a while",
        is_live=True,
    ),
    Setting("moderate_cost", "limits", _COST, "how much of a rate a call of moderate risk takes"),
    Setting("dangerous_cost", "limits", _COST, "how much of a rate a dangerous call takes"),
    Setting(
        "retry_read_only",
        "limits",
        number(0, 10),
        "how often a failed call is made again if its tool says it only reads",
    ),
    Setting("log_format", "telemetry", one_of("text", "json"), "how a line of the log is written"),
    Setting("traces", "telemetry", TRUTH, "whether OpenTelemetry traces are sent"),
    Setting("tool_timeout", "registry", DURATION, "how long a call at /tools may take"),
    Setting("validation_timeout", "registry", DURATION, "how long looking at its arguments may"),
    Setting("discovery_timeout", "registry", DURATION, "how long an answer about the tools may"),
    Setting("lock_timeout", "registry", DURATION, "how long it may wait for a place"),
    Setting("calls_per_server", "registry", _COUNT, "calls of /tools at one server at once"),
    Setting("documentation_url", "registry", TEXT, "where its errors say that these docs are"),
    Setting(
        "mode",
        "identity",
        one_of("local", "required"),
        "whether a request of this machine needs no credentials, or every request needs some",
        "identity_mode",
    ),
    Setting("public_url", "identity", PUBLIC_URL, "the address clients know it by, for OAuth"),
    Setting(
        "accept_auth_member",
        "identity",
        TRUTH,
        "whether credentials may stand in the message, as `auth`",
    ),
    Setting("pepper_file", "identity", TEXT, "the file of the secret that keys are recognised by"),
    Setting("clock_skew", "identity", DURATION, "how far an issuer's clock may be off"),
    Setting("issuers", "identity", ISSUERS, "authorization servers whose access tokens count"),
    Setting("grants", "", GRANTS, "who may do what; more are kept in the store", is_live=True),
    Setting("forbid", "", FORBIDS, "what nobody may do, whatever was granted", is_live=True),
    Setting(
        "default_policy",
        "policy",
        one_of("opt-in", "opt-out"),
        "without a grant: opt-in denies, opt-out allows every party that is known",
        is_live=True,
    ),
    Setting(
        "require_approval",
        "policy",
        one_of("auto", "never", "destructive", "dangerous"),
        "which calls need a person's approval; `destructive`: dangerous ones, and servers in this "
        "file are `trusted` unless they say otherwise; `auto`: dangerous ones, where identity is "
        "required, else never",
    ),
    Setting(
        "approve_own",
        "policy",
        TRUTH,
        "whether a person who may do everything (verb `*` on `*`) may approve its own requests",
    ),
    Setting(
        "suspicious",
        "policy",
        one_of("show", "refuse", "strict"),
        "what is done about tools whose definition hides something, or imitates another",
    ),
    Setting(
        "fallback_validators",
        "policy",
        one_of("auto", "off", "warn", "on"),
        "validators for tools that name none; `auto`: on where identity is required, else warn",
    ),
    Setting(
        "definitions",
        "policy",
        one_of("first_seen", "approve", "off"),
        "when tools are accepted as they are described",
    ),
    Setting(
        "approval_policy",
        "policy",
        one_of("auto", "interactive", "auto_approve", "deny_all", "config_only"),
        "what becomes of permissions nobody decided; `auto`: config_only where identity is "
        "required, else auto_approve",
    ),
    Setting(
        "url",
        "store",
        STORE_URL.kind,
        "where grants, parties and keys are kept; without one, in memory while it runs",
        "store_url",
    ),
    Setting(
        "snapshot_max_age",
        "store",
        DURATION,
        "how long calls are judged by what is known while the store does not answer",
    ),
    *_JOURNAL,
    *_NETWORK,
    *_ASKS,
    *_SUGGESTIONS,
    *CLUSTER,
    *TOPICS,
    *WEBHOOKS,
    *TOOLBELTS,
    *MEANING,
    *REGISTRATION,
    *INFERENCE,
    *CHANNELS,
    *PUSHES,
    *STATES,
    *TURNS,
)

# What can be decided for one server, beside how it is reached.
SERVER_SETTINGS: Final = (
    Setting(
        "sharing", "servers", one_of("shared", "session"), "one link for all clients, or for each"
    ),
    Setting(
        "placement",
        "servers",
        one_of("each", "one"),
        "whether each node of a cluster runs it, or only one of them at a time",
    ),
    Setting("disabled", "servers", TRUTH, "whether the server is left out"),
    Setting(
        "era",
        "servers",
        one_of("auto", "handshake", "modern"),
        "the MCP era that is spoken with it; `auto` finds out",
    ),
    Setting(
        "containment",
        "servers",
        one_of("auto", "group", "namespace"),
        "how its processes are held together; `auto` takes the best that the machine has",
    ),
    Setting("restart_policy", "servers", _POLICY, "when it is started again after it stopped"),
    Setting("max_restarts", "servers", _RESTARTS, "restarts within the window, then none"),
    Setting("restart_window", "servers", DURATION, "the time in which restarts are counted"),
    Setting("backoff_base", "servers", DURATION, "the wait before the first restart; it doubles"),
    Setting("backoff_max", "servers", DURATION, "the longest wait before a restart"),
    Setting(
        "health_interval",
        "servers",
        DURATION_OR_NEVER,
        "how often it is asked whether it is well; 0 asks never",
    ),
    Setting("drain_deadline", "servers", DURATION, "what its open calls get before it is ended"),
    Setting(
        "stop_when_idle",
        "servers",
        DURATION_OR_NEVER,
        "how long it may be unused before it is ended; its next use starts it again; 0: for ever",
    ),
    Setting(
        "max_memory",
        "servers",
        number(0, 10_000_000),
        "how many megabytes its processes may hold; more counts as a failure; 0: any",
    ),
    Setting(
        "default_policy",
        "servers",
        one_of("inherit", "opt-in", "opt-out"),
        "what is so for its offers without a grant; `inherit` takes the gateway's",
        is_live=True,
    ),
    Setting("policy", "servers", POLICY, "what it may do, and how far it is trusted"),
    Setting("live", "servers", LIVE, "what it may do beyond answering, where it speaks MCPL"),
    Setting("tools", "servers", TOOLS, "what is decided of single tools, by name or pattern"),
)
SUPERVISION: Final = frozenset(
    each.name for each in SERVER_SETTINGS if hasattr(Supervision(), each.name)
)

# MGP's own spellings in the table `mgp` of a server, and the field that each one is. (§11.5, §15.2)
MGP_SETTINGS: Final[dict[str, tuple[str, Kind]]] = {
    "restart_policy": ("restart_policy", _POLICY),
    "max_restarts": ("max_restarts", _RESTARTS),
    "restart_window_secs": ("restart_window", whole(timedelta(seconds=1))),
    "backoff_base_ms": ("backoff_base", whole(timedelta(milliseconds=1))),
    "backoff_max_ms": ("backoff_max", whole(timedelta(milliseconds=1))),
    "trust_level": ("trust_level", one_of("trusted", "standard", "sandboxed")),
    "permissions_required": ("permissions_required", _NAMES),
    "extensions": ("extensions", _NAMES),
}

_DEFAULTS: Final = Settings()
_SERVER: Final = ServerSettings("", "", "stdio")


def default_of(setting: Setting) -> Value:
    """The value of a setting that the configuration file does not mention."""
    owners = (_SERVER, _SERVER.supervision) if setting.table == "servers" else (_DEFAULTS,)
    return next(getattr(each, setting.field) for each in owners if hasattr(each, setting.field))
