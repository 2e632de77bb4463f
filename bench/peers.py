"""Starts a gateway of others as a contender: nginx, supergateway or LiteLLM.

`python -m bench.peers NAME UPSTREAM...` chooses a port, announces it and becomes the program. The
programs are in the folder that COMITY_BENCH_PEERS names: `nginx`, an executable; `supergateway`, a
folder in which npm installed it; `litellm`, an environment of Python that has `litellm[proxy]`.
"""

import json
import os
import shlex
import sys
import tempfile
from pathlib import Path

from tests.interop.processes import free_port

FOLDER = Path(os.environ.get("COMITY_BENCH_PEERS", "") or "/nonexistent")
PROGRAMS = {
    "nginx": "nginx",
    "supergateway": "supergateway/node_modules/supergateway/dist/index.js",
    "litellm": "litellm/bin/litellm",
}
_NGINX = """
daemon off; master_process off; pid {folder}/pid; error_log /dev/null;
events {{ worker_connections 1024; }}
http {{
  access_log off;
  client_body_temp_path {folder}; proxy_temp_path {folder}; fastcgi_temp_path {folder};
  uwsgi_temp_path {folder}; scgi_temp_path {folder};
  upstream stub {{ server {upstream}; keepalive 64; }}
  server {{
    listen 127.0.0.1:{port}; keepalive_requests 1000000;
    location / {{
      proxy_pass http://stub; proxy_http_version 1.1; proxy_set_header Connection "";
    }}
  }}
}}
"""


def reason_missing(name: str) -> str | None:
    """Why a peer cannot take part, or None."""
    if (FOLDER / PROGRAMS[name]).exists():
        return None
    return f"not installed; COMITY_BENCH_PEERS names no folder that holds {PROGRAMS[name]}"


def command(name: str, port: int, folder: Path, upstream: list[str]) -> list[str]:
    program = str(FOLDER / PROGRAMS[name])
    if name == "nginx":
        host = upstream[0].split("/")[2]
        config = folder / "nginx.conf"
        config.write_text(_NGINX.format(folder=folder, port=port, upstream=host))
        return [program, "-c", str(config), "-p", str(folder)]
    if name == "supergateway":
        served = ["--outputTransport", "streamableHttp", "--port", str(port), "--stateful"]
        quiet = ["--logLevel", "none"]
        return ["node", program, "--stdio", shlex.join(upstream), *served, *quiet]
    server = {"url": upstream[0], "transport": "http", "allow_all_keys": True}
    config = folder / "litellm.json"
    config.write_text(json.dumps({"model_list": [], "mcp_servers": {"stub": server}}))
    address = ["--host", "127.0.0.1", "--port", str(port), "--num_workers", "1"]
    return [program, "-c", str(config), *address]


def main() -> None:
    name, *upstream = sys.argv[1:]
    if reason := reason_missing(name):
        raise SystemExit(reason)
    # LiteLLM would fetch a list of prices at its start.
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    port = free_port()
    started = command(name, port, Path(tempfile.mkdtemp(prefix="comity-peer-")), upstream)
    print(f"{name}: listening on http://127.0.0.1:{port}", file=sys.stderr, flush=True)
    os.execvp(started[0], started)  # noqa: S606 - our own command


if __name__ == "__main__":
    main()
