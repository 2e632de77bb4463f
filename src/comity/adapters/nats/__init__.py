"""NATS between nodes: a bus, and leases in JetStream."""
