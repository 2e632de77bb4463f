"""Writes docs/reference/errors.md from the table of faults and its advice; run it after a change.

.venv/bin/python -m tests.docs.errors
"""

from comity import errors
from comity.errors import Fault
from comity.mcp.refusals import ADVICE
from tests.docs.pages import ROOT

PAGE = ROOT / "docs" / "reference" / "errors.md"
NAMES = "error_type", "plain MCP", "MGP", "registry", "HTTP there", "MCPx", "MCPL", "may pass"
COLUMNS = f"| {' | '.join(NAMES)} | HTTP at MCP |"


def page() -> str:
    """The page as it should be: what people wrote of it, and the tables as they are now."""
    written, _, _ = PAGE.read_text(encoding="utf-8").partition(COLUMNS)
    faults = [fault for fault in vars(errors).values() if isinstance(fault, Fault)]
    rows = [COLUMNS, "|" + "---|" * (len(NAMES) + 1), *map(_row, faults)]
    return (
        written
        + "\n".join([*rows, "", "## Each of them", "", *map(_section, faults)]).rstrip()
        + "\n"
    )


def _row(fault: Fault) -> str:
    cells = [
        f"[`{fault.error_type}`](#{fault.error_type})",
        f"`isError`, {fault.code}" if fault.in_result else _plain(fault),
        "" if fault.mgp is None else str(fault.mgp),
        "" if fault.dialect == "mcpl" else f"{fault.reg} {fault.reg_type}",
        "" if fault.dialect == "mcpl" else str(fault.reg_status),
        "" if fault.mcpx is None else str(fault.mcpx),
        str(fault.code) if fault.dialect == "mcpl" else str(fault.mcpl or ""),
        "yes" if fault.retryable else "",
        "" if fault.http_status == 200 else str(fault.http_status),
    ]
    return "|" + "|".join(f" {cell} " if cell else " " for cell in cells) + "|"


def _plain(fault: Fault) -> str:
    return "" if fault.dialect == "mcpl" else str(fault.code)


def _section(fault: Fault) -> str:
    advice = ADVICE[fault]
    steps = "\n".join(f"- {each}" for each in advice.suggestions)
    return f"### {fault.error_type}\n\n{advice.cause}\n\n{steps}\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
