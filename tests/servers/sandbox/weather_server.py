"""A FastMCP server that needs one host, whose URL is its argument. Run as a program."""

import sys
import urllib.error
import urllib.request

from fastmcp import FastMCP

server = FastMCP("weather")


@server.tool
def forecast() -> str:
    """Return the forecast of the service."""
    try:
        with urllib.request.urlopen(sys.argv[1], timeout=20) as answer:  # noqa: S310
            return answer.read().decode()
    except urllib.error.HTTPError as refused:
        raise ValueError(f"{refused.code}: {refused.read().decode()}") from None


server.run(show_banner=False)
