"""Where pushes go and which webhooks come in, as somebody writes it down; and what is wrong."""

from pathlib import Path

import pytest

from comity.rules.pushes import HookRow, Row
from comity.wire.errors import Misconfigured
from comity.wire.inbound_hooks import HookKind
from comity.wire.pushes import Goal, Route
from tests.config.writing import from_text

HOOK = '[[hooks]]\nname = "x"\nsecret_file = "s"\n'


def test_rows_say_whose_pushes_go_where(tmp_path: Path) -> None:
    settings = from_text(
        tmp_path,
        """
[[pushes]]
from = "ci/builds.*"
to = "turn"
conversation = "{/repo}"
party = "agent:ops"
say_in = ["topic:ops", "channel:chat/1"]
[[pushes]]
from = "ci"
to = "topic:ops"
[[pushes]]
from = "*/*"
to = "turn"
""",
    )
    say_in = ("topic:ops", "channel:chat/1")
    assert settings.push_rows == (
        Row("ci", "builds.*", Route(Goal.TURN, "", "{/repo}", "agent:ops", say_in)),
        Row("ci", "*", Route(Goal.TOPIC, "ops")),
        Row("*", "*", Route(Goal.TURN, "", "{event}")),
    )


def test_webhooks_that_come_in_have_a_kind_a_secret_and_a_goal(tmp_path: Path) -> None:
    settings = from_text(
        tmp_path,
        f"""
{HOOK}kind = "github"
to = "events"
content = "{{type}}: {{/action}}"
[[hooks]]
name = "sensor"
kind = "plain"
secret_file = "t"
header = "X-Sig"
algorithm = "sha512"
id = "/id"
to = "webhooks"
""",
    )
    github = HookRow("x", HookKind.GITHUB, "s", Route(Goal.EVENTS), content="{type}: {/action}")
    where = ("X-Sig", "sha512", "/id")
    sensor = HookRow("sensor", HookKind.PLAIN, "t", Route(Goal.WEBHOOKS), *where)
    assert settings.hook_rows == (github, sensor)


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ('[[pushes]]\nfrom = "ci"\n', "to"),
        ('[[pushes]]\nto = "turn"\n', "from"),
        ('[[pushes]]\nfrom = "ci/"\nto = "turn"\n', "from"),
        ('[[pushes]]\nfrom = "hook:x/*"\nto = "turn"\n', "from"),
        ('[[pushes]]\nfrom = "ci"\nto = "somewhere"\n', "must be one of"),
        ('[[pushes]]\nfrom = "ci"\nto = "topic:"\n', "must be one of"),
        ('[[pushes]]\nfrom = "ci"\nto = "turn:x"\n', "must be one of"),
        ('[[pushes]]\nfrom = "ci"\nto = "topic:a b"\n', "must be one of"),
        ('[[pushes]]\nfrom = "ci"\nto = "events"\nparty = "agent:x"\n', "which is for"),
        ('[[pushes]]\nfrom = "ci"\nto = "turn"\nconversation = "{x}"\n', "conversation"),
        ('[[pushes]]\nfrom = "ci"\nto = "turn"\nparty = "person:x"\n', "party"),
        ('[[pushes]]\nfrom = "ci"\nto = "turn"\nsay_in = ["ops"]\n', "say_in"),
        ('[[pushes]]\nfrom = "ci"\nto = "turn"\nelse = 1\n', "else"),
        (f'{HOOK}kind = "bitbucket"\nto = "turn"\n', "kind"),
        (f'{HOOK}kind = "github"\n', "to"),
        (f'{HOOK}kind = "plain"\nto = "turn"\n', "header"),
        (f'{HOOK}kind = "github"\nheader = "X"\nto = "turn"\n', "by itself"),
        (f'{HOOK}kind = "github"\nto = "turn"\nid = "id"\n', "id"),
        (f'{HOOK}kind = "github"\nto = "turn"\n{HOOK}kind = "gitlab"\nto = "turn"\n', "twice"),
        ('[[hooks]]\nname = "a/b"\nkind = "github"\nsecret_file = "s"\nto = "turn"\n', "name"),
        ("[limits]\npush_bytes = 1\n", "push_bytes"),
    ],
)
def test_what_is_wrong_in_a_row_is_told(tmp_path: Path, written: str, told: str) -> None:
    with pytest.raises(Misconfigured, match=told):
        from_text(tmp_path, written)
