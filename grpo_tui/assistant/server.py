"""``grpo-tui mcp``: a Model Context Protocol server for an assistant that looks at the runs of a box."""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING, Any

from grpo_train.run_dir.errors import UserError
from grpo_train.run_dir.installation import install_command
from grpo_train.run_dir.version import VERSION
from grpo_tui.assistant.prompts import INSTRUCTIONS, PROMPTS
from grpo_tui.assistant.reading import BoxReader
from grpo_tui.shell.options import add_box_options, exit_code

if TYPE_CHECKING:
    from mcp.server import MCPServer

_HELP = """\
Serve an assistant over the Model Context Protocol (stdio), so that it can look at the runs of a box: their verdicts,
curves, events, completions, logs, evaluations, configurations, costs. It changes nothing.

The assistant's program starts it. In its configuration, the command is  grpo-tui  and the arguments are, for example,
mcp --box h200-a.
"""


def parser() -> argparse.ArgumentParser:
    """The options of the command."""
    options = argparse.ArgumentParser(
        prog="grpo-tui mcp",
        description=_HELP,
        epilog="Exit codes: 0 the assistant has closed it, 1 failed, 2 usage error, 130 ended by Ctrl-C.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_box_options(options)
    return options


def run(words: list[str]) -> int:
    """Run the command; returns the exit code."""
    arguments = parser().parse_args(words[1:])
    try:
        from grpo_tui.cli import first_box

        with closing(BoxReader(first_box(arguments), arguments.boxes)) as reading:
            server_of(reading).run("stdio")
    except UserError as error:
        print(f"grpo-tui: {error}", file=sys.stderr)
        return exit_code(error.code)
    except KeyboardInterrupt:
        return 130
    return 0


def server_of(reading: BoxReader) -> MCPServer:
    """The server of a box. Raises UserError (``bad_config``) where the package is missing."""
    try:
        from mcp.server import MCPServer
        from mcp.types import ToolAnnotations
    except ImportError as error:
        raise UserError(
            f"the server needs the package mcp ({error}):  {install_command('mcp')}", code="bad_config"
        ) from error
    server = MCPServer(
        "grpo-tui", instructions=INSTRUCTIONS.format(box=reading.box.name), version=VERSION, log_level="CRITICAL"
    )
    looks = ToolAnnotations(read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False)
    for tool in reading.tools():
        description = " ".join((tool.__doc__ or "").split())
        server.add_tool(_answering(tool), tool.__name__, description=description, annotations=looks)

    @server.resource("grpo://runs", mime_type="application/json")
    def runs() -> dict[str, Any]:
        """The runs of the box, as the tool 'runs' lists them."""
        return _answering(reading.runs)()

    @server.resource("grpo://runs/{run}", mime_type="application/json")
    def one_run(run: str) -> dict[str, Any]:
        """A run, as the tool 'run' shows it."""
        return _answering(reading.run)(run)

    for prompt in PROMPTS:
        server.prompt(prompt.__name__, description=prompt.__doc__)(prompt)
    return server


def _answering(tool: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """A tool whose errors reach the assistant as a sentence, with what to do."""
    from mcp.server.mcpserver.exceptions import ToolError

    @functools.wraps(tool)
    def answer(*given: Any, **named: Any) -> dict[str, Any]:
        try:
            return tool(*given, **named)
        except UserError as error:
            hint = str(getattr(error, "hint", ""))
            raise ToolError(f"{error.code}: {error}" + (f"; {hint}" if hint else "")) from error

    return answer
