"""The client that tests meet servers with keeps all that it is sent, in whatever order it comes."""

import sys

from tests.interop.hand_client import Frame, over_stdio

# It answers its first request while the reader of that one is busy with the second.
SERVER = """
import json
import sys

def send(**members):
    print(json.dumps({"jsonrpc": "2.0", **members}), flush=True)

first = json.loads(sys.stdin.readline())
send(method="before")
second = json.loads(sys.stdin.readline())
send(id=first["id"], result={})
send(method="between")
send(id=second["id"], result={})
send(method="after")
sys.stdin.read()
"""


async def test_a_notice_after_a_response_is_not_lost_with_its_call() -> None:
    inner: list[str] = []

    async with over_stdio([sys.executable, "-c", SERVER]) as client:

        async def amid_the_call(_: Frame) -> None:
            inner.extend(each["method"] for each in (await client.request("b")).frames[:-1])

        exchange = await client.request("a", meanwhile=amid_the_call)
        assert [each["method"] for each in exchange.frames[:-1]] == ["before"]
        assert inner == ["between"]
        assert (await client.standalone.get())["method"] == "after"
