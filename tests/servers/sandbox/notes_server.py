"""A server with an SQLite database, whose path is its argument. Run as a program."""

import sqlite3
import sys
from contextlib import closing

from mcp.server.mcpserver import MCPServer

server = MCPServer("notes")


@server.tool()
def add(text: str) -> str:
    with closing(sqlite3.connect(sys.argv[1])) as database, database:
        database.execute("CREATE TABLE IF NOT EXISTS notes (text TEXT)")
        database.execute("INSERT INTO notes VALUES (?)", (text,))
    return "added"


@server.tool()
def find() -> str:
    with closing(sqlite3.connect(sys.argv[1])) as database:
        return " ".join(row[0] for row in database.execute("SELECT text FROM notes"))


server.run()
