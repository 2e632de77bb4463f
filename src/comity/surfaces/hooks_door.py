"""POST /hooks/{name}: webhooks of others, taken in if they are signed.

No credentials are asked for: the signature is who it is. 202 says that it is kept, 200 that it was
before; 401 says nothing more, not even whether there is such a webhook.
"""

import re
from typing import Final

from comity.kernel.live.push_hooks import InboundHooks, Taken
from comity.surfaces import doorway
from comity.surfaces.doorway import HeaderList, Receive, Scope, Send
from comity.surfaces.reception import HOOKS
from comity.wire import jsonrpc

RETRY_SECONDS: Final = 30
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_STATUS: Final = {
    Taken.KEPT: (202, {"accepted": True}),
    Taken.KNOWN: (200, {"accepted": False, "reason": "duplicate"}),
    Taken.UNSIGNED: (401, {"error": "not signed as it should be"}),
    Taken.TOO_MANY: (429, {"error": "too many; send it again later"}),
}


class HooksDoor:
    """Where webhooks of others come in."""

    def __init__(self, hooks: InboundHooks) -> None:
        self._hooks = hooks

    async def __call__(
        self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, send: Send
    ) -> None:
        if scope["method"] != "POST":
            await doorway.empty(send, 405, ((b"allow", b"POST"),))
            return
        name = str(scope["path"]).removeprefix(HOOKS)
        body = await doorway.read_body(receive, headers, self._hooks.most_bytes)
        known = name if _NAME.fullmatch(name) else ""
        # Of a header that is there twice the first counts for one reader, the last for another.
        taken = await self._hooks.take(known, _once(scope["headers"]), body)
        status, answer = _STATUS[taken]
        more = ((b"retry-after", b"%d" % RETRY_SECONDS),) if taken is Taken.TOO_MANY else ()
        await doorway.answer(send, status, bytes(jsonrpc.to_raw(answer)), more)


def _once(headers: HeaderList) -> dict[bytes, bytes]:
    """Only those that are there once; so nobody can show two signatures, or two ids."""
    names = [name for name, _ in headers]
    return {name: value for name, value in headers if names.count(name) == 1}
