"""The endpoints of views, as the settings add, change and remove them."""

import asyncio

from comity.app.http import HttpApp
from comity.app.settings import Settings
from comity.app.upstreams import make_endpoints
from comity.gateway.all_servers import AllServersEndpoint
from comity.gateway.view_endpoint import ViewEndpoint
from comity.http.asgi import HttpEndpoint
from comity.identity.http_auth import AuthMember
from comity.servers.wiring import limits_of
from comity.sessions.sessions import SessionStore
from comity.views.service import ServedView, ViewService


class ViewEndpoints:
    """Serves each view of the settings at `/views/{name}/mcp`."""

    def __init__(
        self,
        views: ViewService,
        endpoint: AllServersEndpoint,
        http_app: HttpApp,
        sessions: SessionStore,
        auth: AuthMember,
    ) -> None:
        self._views = views
        self._endpoint = endpoint
        self._http_app = http_app
        self._sessions = sessions
        self._auth = auth
        self._paths_by_view: dict[str, tuple[str, ...]] = {}

    def serve(self, settings: Settings) -> list[ServedView]:
        """Serve the views of the settings. Returns the views that are no longer served."""
        before = list(self._views)
        changed = self._views.replace(settings.views)
        for view in changed:
            if view.name not in self._paths_by_view:
                endpoints = self._make_endpoints(view, settings)
                self._paths_by_view[view.name] = tuple(endpoints)
                self._http_app.add_endpoints(endpoints)
            else:
                self._endpoint.subscriptions.on_view_changed(view)
        removed = [view for view in before if self._views.get(view.name) is None]
        for view in removed:
            self._http_app.remove_endpoints(self._paths_by_view.pop(view.name))
            self._endpoint.subscriptions.end_view_streams(view)
        return removed

    async def apply_settings(self, settings: Settings) -> None:
        """Serve the views of changed settings, and end the sessions of views that are gone."""
        gone = {view.target for view in self.serve(settings)}
        ended = [each for each in self._sessions if each.endpoint_name.removeprefix("sse:") in gone]
        await asyncio.gather(*(self._sessions.end(session) for session in ended))

    def _make_endpoints(self, view: ServedView, settings: Settings) -> dict[str, HttpEndpoint]:
        # The target has a colon, so no server has the same endpoint name.
        return make_endpoints(
            view.target,
            ViewEndpoint(view, self._views, self._endpoint),
            self._sessions,
            limits_of(settings),
            self._auth,
            folder=f"/views/{view.name}",
        )
