"""A tree of checkpoints, and who is found in it."""

from datetime import UTC, datetime

from comity.wire.state_trees import Form, Node, Tree

NOW = datetime(2026, 7, 28, tzinfo=UTC)


def test_a_checkpoint_is_found_by_its_name() -> None:
    nodes = {number: Node(number, f"chk_{number}", NOW) for number in (1, 2, 3)}
    tree = Tree(3, 3, nodes)
    assert tree.named("chk_2") == nodes[2]
    assert tree.named("chk_9") is None
    assert tree.named(None) is None
    assert Tree().named("chk_1") is None


def test_a_checkpoint_of_which_no_more_is_known_is_opaque() -> None:
    assert Node(1, "chk_1", NOW).form is Form.OPAQUE
