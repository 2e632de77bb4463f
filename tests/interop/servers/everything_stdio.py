"""The official fixture server over stdio; its own command offers only HTTP.

`mcp_everything_server` has to be importable: it is not a package of any index.
"""

from importlib import import_module

import_module("mcp_everything_server.server").mcp.run("stdio")
