"""Which configuration files are looked for, and in which order."""

from comity.rules.config_files import choices


def test_own_files_come_first_and_those_of_mgp_together_last() -> None:
    assert choices(None) == (
        ("comity.toml",),
        ("mcp.json",),
        (".mcp.json",),
        ("mgp.toml", ".config/mgp/servers.toml"),
    )


def test_a_named_file_takes_the_place_of_those_of_mgp() -> None:
    assert choices("elsewhere.toml")[-1] == ("elsewhere.toml",)
    assert choices("elsewhere.toml")[:-1] == choices("")[:-1]
