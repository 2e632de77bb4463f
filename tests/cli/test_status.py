"""`comity status`, asked of a real gateway."""

from tests.cli.program import Desk


def test_the_status_of_a_gateway_fits_on_a_few_lines(desk: Desk, gateway: str) -> None:
    ran = desk.run("status", "--url", gateway)
    assert ran.status == 1, "one of its servers has failed"
    assert gateway in ran.lines[0]
    assert any(line.split() == ["tools", "4"] for line in ran.lines)
    assert "no-such-program-anywhere" in ran.out
    assert any(line.endswith("2 (1 connected, 1 failed)") for line in ran.lines)


def test_a_program_reads_the_status_as_json(desk: Desk, gateway: str) -> None:
    ran = desk.run("status", "--json", COMITY_URL=f"{gateway}/mcp")
    assert (ran.status, ran.err) == (1, "")
    assert (ran.json["url"], ran.json["tools"]) == (gateway, 4)
    assert ran.json["servers"]["connected"] == 1
    assert sum(ran.json["servers"].values()) == 2
    assert [each["id"] for each in ran.json["troubled"]] == ["absent"]


def test_a_gateway_that_is_not_there_is_told_apart_from_a_sick_one(desk: Desk) -> None:
    ran = desk.run("status", "--url", "http://127.0.0.1:9")
    assert (ran.status, ran.out) == (3, "")
    assert "comity serve" in ran.err
    assert "--url" in ran.err


def test_an_address_that_cannot_be_is_the_operators_mistake(desk: Desk) -> None:
    for url in ("ftp://127.0.0.1", "http://", "http://127.0.0.1:x"):
        ran = desk.run("status", "--url", url)
        assert (ran.status, ran.out) == (2, "")
        assert "http://127.0.0.1:2664" in ran.err
