"""Publishes the gateway's own events: audit events, calls that start, and changes of servers.

`events.standard_channels` says which audit event goes to which channel. An audit event is published
once it is durable, the start of a call at once. While there is no subscriber, nothing is computed.
"""

import logging
from collections.abc import Mapping

from comity.audit import events as audit
from comity.audit.log import AuditLog
from comity.catalog.toolbelt import ClientToolbelt
from comity.events.bus import EventBus
from comity.events.model import GatewayEvent
from comity.events.standard_channels import (
    BUDGET,
    CONFIG_CHANGED,
    SERVER_STATE,
    STANDARD,
    STARTED,
    channels_of,
    severity_of_state,
    to_channel_event,
)
from comity.gateway.call_audit import CallAudit
from comity.servers.supervisor import ServerTransition

log = logging.getLogger(__name__)


class GatewayEventSource:
    """Publishes on the event bus what happens at this node."""

    def __init__(self, events: EventBus, audit_log: AuditLog, call_audit: CallAudit) -> None:
        self._events = events
        self._audit_log = audit_log
        self._call_audit = call_audit
        self._is_publishing = False
        events.switches.append(self._on_subscribers_changed)

    def _on_subscribers_changed(self, has_subscribers: bool) -> None:
        if has_subscribers is self._is_publishing:
            return
        self._is_publishing = has_subscribers
        # A new list, since the log may be iterating over the old one.
        others = [each for each in self._audit_log.listeners if each != self.on_audit_event]
        self._audit_log.listeners = [*others, self.on_audit_event] if has_subscribers else others
        self._call_audit.on_call_sent = self.on_call_sent if has_subscribers else None

    def on_audit_event(self, event: audit.AuditEvent) -> None:
        """Publish an audit event that is durable."""
        for channel in channels_of(event):
            self._events.publish(to_channel_event(event, channel, self._events.mint()))

    def on_call_sent(self, event: audit.AuditEvent) -> None:
        """Publish that a call is sent to its server. An error here does not stop the call."""
        try:
            self._events.publish(to_channel_event(event, STARTED, self._events.mint()))
        except Exception:
            log.exception("The start of a call could not be published")

    def on_transition(self, transition: ServerTransition) -> None:
        """Publish that a server changed its state."""
        if not self._is_publishing:
            return
        data: dict[str, object] = {
            "server_id": transition.server,
            "previous_state": transition.previous,
            "new_state": transition.state,
            "reason": self._audit_log.redact(transition.reason),
        }
        data |= {"given_up": True} if transition.is_given_up else {}
        severity = severity_of_state(transition.state, is_given_up=transition.is_given_up)
        name = self._events.mint()
        self._events.publish(
            GatewayEvent(name, SERVER_STATE, transition.at, severity, data, transition.server)
        )

    def on_toolbelt_changed(self, toolbelt: ClientToolbelt) -> None:
        """Publish that the tools in a client's context, or their cost, changed."""
        if self._is_publishing:
            party, tools = toolbelt.actor.party, toolbelt.tools
            data: dict[str, object] = {
                "actor": party,
                "tokens_used": tools.total,
                "tokens_remaining": max(0, tools.budget.max_tokens - tools.total),
                "tools_loaded": tools.count,
            }
            name, at, severity = (
                self._events.mint(),
                self._events.clock(),
                STANDARD[BUDGET].severity,
            )
            self._events.publish(GatewayEvent(name, BUDGET, at, severity, data, party=party))

    def on_settings_reloaded(self, servers: Mapping[str, object]) -> None:
        """Publish that the settings were reloaded, and which servers that changes."""
        self._events.publish_own(CONFIG_CHANGED, {"servers": servers})
