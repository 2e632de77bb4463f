"""Clients for commands: of a running gateway, of its database, or of a temporary gateway.

This module imports nothing of a gateway. Most commands talk to one that runs already.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager

from comity.cli.api_client import Answer, ApiClient
from comity.cli.options import CliOptions, current_options
from comity.cli.target import connect_gateway
from comity.errors import Unavailable


class AdminClient:
    """Reads and writes records through a running gateway, or with `--offline` in its database."""

    def __init__(self, options: CliOptions | None = None) -> None:
        self._options = options or current_options()
        self._api_client = None if self._options.offline else connect_gateway(options=self._options)

    def get(self, *path_parts: str, **query: str) -> Answer:
        if self._api_client is not None:
            with _offline_advice():
                return self._api_client.get(*path_parts, **query)
        # Imported here because it loads slowly, and a running gateway needs none of it here.
        from comity.app import offline

        return offline.request_offline(self._options.config, "GET", path_parts, query, {})

    def pages(self, name: str, limit: int | None = None, **query: str) -> list[Answer]:
        """Return the entries of a list, up to the limit. The method requests page after page."""
        found: list[Answer] = []
        while True:
            page = self.get(name, **query)
            found += page[name]
            if "next" not in page or (limit is not None and len(found) >= limit):
                return found[:limit]
            query["cursor"] = page["next"]

    def post(self, *path_parts: str, **body: object) -> Answer:
        said = {name: value for name, value in body.items() if value not in (None, "", ())}
        if self._api_client is not None:
            with _offline_advice():
                return self._api_client.post(*path_parts, body=said)
        # Imported here because it loads slowly, and a running gateway needs none of it here.
        from comity.app import offline

        offline.refuse_if_gateway_runs(self._options.config)
        return offline.request_offline(self._options.config, "POST", path_parts, {}, said)


@contextmanager
def _offline_advice() -> Generator[None]:
    try:
        yield
    except Unavailable as away:
        raise Unavailable(f"{away}; or work on the database with --offline") from None


@contextmanager
def tool_client(is_wanted: Callable[[str], bool]) -> Generator[ApiClient]:
    """Yield a client of the gateway, or with `--local` of a temporary one.

    A temporary gateway starts the servers whose id is wanted.
    """
    options = current_options()
    if not options.local:
        yield connect_gateway()
        return
    # Imported here because a gateway loads slowly, and most commands talk to a running one.
    from comity.app.processes.local_gateway import configured_gateway

    with configured_gateway(options.config, is_wanted) as gateway:
        yield gateway
