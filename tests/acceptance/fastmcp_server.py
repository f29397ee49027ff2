"""A small server made with FastMCP, for tests: `python fastmcp_server.py PORT` serves it over HTTP."""

# mypy: disable-error-code="untyped-decorator"

import sys

from fastmcp import Context, FastMCP  # type: ignore[import-not-found]  # only in its own environment

server = FastMCP("Calculator")


@server.tool(annotations={"readOnlyHint": True, "idempotentHint": True})
async def add(a: float, b: float, ctx: Context) -> float:
    """Add two numbers."""
    await ctx.report_progress(1, 2)
    await ctx.info(f"{a} + {b}")
    await ctx.report_progress(2, 2)
    return a + b


@server.tool
def divide(a: float, b: float) -> float:
    """Divide one number by another."""
    return a / b


@server.resource("calc://history")
def history() -> str:
    """Earlier calculations."""
    return "none"


@server.resource("calc://square/{number}")
def square(number: int) -> str:
    """The square of a number."""
    return str(number * number)


@server.prompt
def explain(expression: str) -> str:
    """Explain an expression."""
    return f"Explain {expression}"


if __name__ == "__main__":
    server.run(transport="http", host="127.0.0.1", port=int(sys.argv[1]), show_banner=False)
