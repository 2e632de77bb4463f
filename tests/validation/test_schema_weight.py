"""How heavy a schema is, before it is tried."""

from comity.validation.schema_cost import BUDGET, TOO_HEAVY, SchemaCost, is_plain, weigh_schema


def test_an_ordinary_schema_is_light_and_plain() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 5}}}
    assert is_plain(schema)
    assert weigh_schema(schema, True) == SchemaCost(3, 0)
    assert weigh_schema(schema, True).fits(1000, 100_000)


def test_references_are_counted_each_time_they_are_followed() -> None:
    once: dict[str, object] = {
        "$defs": {"a": {"items": {}}},
        "properties": {"x": {"$ref": "#/$defs/a"}},
    }
    twice: dict[str, object] = {
        **once,
        "properties": {"x": {"$ref": "#/$defs/a"}, "y": {"$ref": "#/$defs/a"}},
    }
    assert weigh_schema(twice, True).parts > weigh_schema(once, True).parts
    assert not is_plain(once)


def test_what_leads_back_or_out_is_too_heavy() -> None:
    for schema in (
        {"$ref": "#"},
        {"properties": {"a": {"$ref": "#/$defs/t"}}, "$defs": {"t": {"$ref": "#/$defs/t"}}},
        {"$ref": "http://x"},
        {"$ref": "#/none"},
        {"$ref": 5},
        {"$dynamicRef": "#x"},
    ):
        assert weigh_schema(schema, True) is TOO_HEAVY


def test_patterns_weigh_by_what_they_repeat() -> None:
    light = weigh_schema({"pattern": "^[a-z]+$"}, True)
    assert light.fits(1, 10_000)
    heavy = weigh_schema({"patternProperties": {"(a{1,900}){1,900}": {}}}, True)
    assert not heavy.fits(1, 100)
    assert not weigh_schema({"pattern": "(?=a)"}, False).fits(BUDGET // 1000, 1)
