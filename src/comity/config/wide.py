"""What can be decided of topics, of webhooks, and of nodes that are one gateway, as rows."""

from typing import Final

from comity.config.addresses import CLUSTER_URL
from comity.config.cluster import NODE_NAME
from comity.config.kinds import DURATION, TEXT, TRUTH, number, one_of, texts
from comity.config.rooms import ACCESS, CAPABILITIES, ROOMS
from comity.config.setting import Setting

_COUNT: Final = number(1, 10_000_000)
_HOSTS: Final = texts(
    r"\.?[A-Za-z0-9._-]+|\[?[0-9A-Fa-f:.]+\]?", "hooks.internal, or .internal for all below it"
)
_PORTS: Final = texts(r"[0-9]{1,5}", '"8443"')
_PER_MINUTE: Final = number(0, 10_000_000)
CLUSTER: Final = (
    Setting(
        "url",
        "cluster",
        CLUSTER_URL.kind,
        "where the NATS servers are that join several nodes; without one, it is alone",
        "cluster_url",
    ),
    Setting(
        "credentials_file",
        "cluster",
        TEXT,
        "the file that NATS gave to know this deployment by",
        "cluster_credentials_file",
    ),
    Setting(
        "authority_file",
        "cluster",
        TEXT,
        "the certificate of who vouches for its `tls://` servers; else the system's",
        "cluster_authority_file",
    ),
    Setting(
        "allow_open_nats",
        "cluster",
        TRUTH,
        "whether NATS servers beyond this machine may be used without a login",
        "cluster_allow_open_nats",
    ),
    Setting("node", "cluster", NODE_NAME, "what this node is called", "cluster_node"),
    Setting(
        "name",
        "cluster",
        NODE_NAME,
        "what all that nodes say to each other begins with; the same on each of them",
        "cluster_name",
    ),
    Setting(
        "heartbeat", "cluster", DURATION, "how often a node says that it lives", "cluster_heartbeat"
    ),
    Setting(
        "dead_after",
        "cluster",
        DURATION,
        "how long one may be silent before it counts as dead",
        "cluster_dead_after",
    ),
    Setting(
        "lease",
        "cluster",
        DURATION,
        'how long a server of `placement = "one"` stays with a node that is not heard of',
        "cluster_lease",
    ),
)
TOPICS: Final = (
    Setting("access", "topics", ACCESS, "who may join a topic", "topic_access"),
    Setting(
        "capabilities",
        "topics",
        CAPABILITIES,
        "what somebody may send into a topic who was granted nothing there",
        "topic_capabilities",
    ),
    Setting("members", "topics", _COUNT, "members of one topic at most", "topic_members"),
    Setting("most", "topics", _COUNT, "topics at once at most", "most_topics"),
    Setting(
        "messages",
        "topics",
        _PER_MINUTE,
        "envelopes of a member in a minute; 0: any",
        "topic_messages",
    ),
    Setting("chats", "topics", _PER_MINUTE, "of them chat; 0: any", "topic_chats"),
    Setting("envelope_bytes", "topics", number(1024, 2**24), "the longest envelope"),
    Setting("queue_bytes", "topics", number(16_384, 2**27), "how much waits for a slow member"),
    Setting("grace", "topics", DURATION, "how long a cut connection is waited for", "topic_grace"),
    Setting(
        "journal",
        "topics",
        one_of("none", "mcp", "all"),
        "of which envelopes the heading is journaled; `mcp`: all but chat",
        "topic_journal",
    ),
    Setting("rooms", "topics", ROOMS, "topics in which something else holds"),
)
WEBHOOKS: Final = (
    Setting(
        "allow_hosts",
        "webhooks",
        _HOSTS,
        "hosts that may be posted to though they are not public, or without TLS",
        "webhook_hosts",
    ),
    Setting(
        "ports", "webhooks", _PORTS, "ports of other hosts that may be posted to", "webhook_ports"
    ),
    Setting(
        "lasts", "webhooks", DURATION, "how long one lasts that is not renewed", "webhook_lasts"
    ),
    Setting("most", "webhooks", _COUNT, "webhooks at most", "most_webhooks"),
    Setting("most_of_one", "webhooks", _COUNT, "of them, of one party", "most_webhooks_of_one"),
    Setting(
        "most_waiting", "webhooks", _COUNT, "events that wait for one at most", "webhook_waiting"
    ),
    Setting("deadline", "webhooks", DURATION, "how long one post may take", "webhook_deadline"),
    Setting(
        "first_retry", "webhooks", DURATION, "how soon it is tried again", "webhook_first_retry"
    ),
    Setting(
        "longest_retry",
        "webhooks",
        DURATION,
        "how long it is left between two tries at most",
        "webhook_longest_retry",
    ),
    Setting(
        "retry_for",
        "webhooks",
        DURATION,
        "how long an event is tried before it counts as failed",
        "webhook_retry_for",
    ),
    Setting(
        "disable_after",
        "webhooks",
        DURATION,
        "how long one may fail before nothing more is posted to it",
        "webhook_disable_after",
    ),
    Setting("at_once", "webhooks", number(1, 10_000), "posts at once", "webhook_at_once"),
    Setting(
        "at_once_place",
        "webhooks",
        number(1, 10_000),
        "of them, to one place",
        "webhook_at_once_place",
    ),
)
