"""`comity servers add` with an OpenAPI document."""

import json
from typing import Any

from tests.cli.program import Desk

DOCUMENT: dict[str, Any] = {
    "openapi": "3.0.3",
    "info": {"title": "Shop", "version": "1"},
    "servers": [{"url": "https://shop.example.org/v2"}],
    "security": [{"token": []}],
    "paths": {
        "/items": {"get": {"operationId": "list"}, "post": {"operationId": "create"}},
        "/other": {"get": {"servers": [{"url": "https://other.example.org"}]}},
    },
    "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
}
CONFIG = '[store]\nurl = "sqlite:///c.db"  # kept\n'


def test_an_api_is_added_to_the_configuration_with_its_url_and_credential(desk: Desk) -> None:
    desk.write("comity.toml", CONFIG)
    desk.write("shop.json", json.dumps(DOCUMENT))
    added = desk.run("servers", "add-api", "shop", "shop.json")
    assert added.status == 0, added.err
    assert "Added shop with 2 tools at https://shop.example.org/v2" in added.out
    assert "it is served by another host" in added.out
    assert "set `auth` for token" in added.out + added.err
    more = ("--operation", "GET *", "--auth", "token=${SHOP}", "--header", "X-Tenant=a")
    again = ("servers", "add-api", "read", "shop.json", *more)
    assert desk.run(*again).status != 0, "the variable is not set"
    second = desk.run(*again, "-o", "json", SHOP="s3cret")
    assert second.status == 0, second.err
    assert (second.json["tools"], second.json["schemes"]) == (1, ["token"])
    written = (desk.folder / "comity.toml").read_text()
    assert written.startswith(CONFIG)
    assert 'token = "${SHOP}"' in written
    assert "s3cret" not in written + second.out + second.err
    assert desk.run("config", "check", SHOP="s3cret").status == 0
    for arguments, reason in (
        (("shop", "shop.json"), "has a server 'shop'"),
        (("other", "shop.json"), "the same server under another name"),
        (("new", "none.json"), "there is no such file"),
        (("new", "shop.json", "--auth", "key=a"), "no security scheme 'key'"),
        (("new", "shop.json", "--operation", "PUT *"), "matches none"),
        (("new", "comity.toml"), "it is no"),
    ):
        refused = desk.run("servers", "add-api", *arguments, SHOP="s3cret")
        assert refused.status != 0
        assert reason in refused.err, refused.err
    assert (desk.folder / "comity.toml").read_text() == written
