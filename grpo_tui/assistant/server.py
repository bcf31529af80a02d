"""``grpo-tui mcp``: a Model Context Protocol server for an assistant that looks at the runs of a box, and acts on them
within a grant."""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING, Any, Literal

from grpo_train.history.search import moment
from grpo_train.run_dir.clock import CLOCK
from grpo_train.run_dir.errors import UserError, did_you_mean
from grpo_train.run_dir.installation import install_command
from grpo_train.run_dir.version import VERSION
from grpo_tui.assistant.acting import FILE, BoxActor
from grpo_tui.assistant.prompts import PROMPTS, instructions
from grpo_tui.assistant.reading import BoxReader, Texts
from grpo_tui.box.unanswered import requester
from grpo_tui.history import history_file
from grpo_tui.shell.options import add_box_options, config_of, exit_code
from remote.boxes import Box, notify_overrides
from remote.protocol.grants import CODE, PAID, VERBS, Grant, account_of, text_hash

if TYPE_CHECKING:
    from mcp.server import MCPServer

DEFAULT_HOURS = 24
"""Of a grant without ``--until``, from the start of the server: a night and the morning after it."""
_HELP = """\
Serve an assistant over the Model Context Protocol (stdio), so that it can look at the runs of a box: their verdicts,
curves, events, completions, logs, evaluations, configurations, costs. It changes nothing but what --allow grants.

The assistant's program starts it. In its configuration, the command is  grpo-tui  and the arguments are, for example,
mcp --box h200-a.
"""
_GRANT = """\
A grant is what --allow names, for the runs of --run and those that were launched under it, as long as --until says.
A launch, a resume and an evaluation cost money: --budget-dollars is what all of them together may cost on this box
under the same --until, however often the server starts. The agent on the box holds the grant, and everything is
written down there, in the run and on this machine.
"""


def command_parser(command: str) -> argparse.ArgumentParser:
    """The options of the command."""
    options = argparse.ArgumentParser(
        prog=f"grpo-tui {command}",
        description=_HELP,
        epilog="Exit codes: 0 the assistant has closed it, 1 failed, 2 usage error, 130 ended by Ctrl-C.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_box_options(options)
    grant = options.add_argument_group("what the assistant may do", _GRANT)
    grant.add_argument(
        "--allow",
        metavar="VERBS",
        default="",
        help=f"any of {', '.join(VERBS)}, with commas; and {CODE}: configs of its own, files, paths and addresses",
    )
    grant.add_argument("--run", metavar="RUN", action="append", help="a run that it may act on (repeatable)")
    grant.add_argument("--config", metavar="CFG", action="append", help="a config that it may launch (repeatable)")
    grant.add_argument(
        "--budget-dollars", metavar="N", type=float, help="what launches, resumes and evaluations may cost"
    )
    grant.add_argument(
        "--until",
        metavar="TIME",
        default="",
        help=f"when the grant ends, such as 2026-12-01T08:00 (default: in {DEFAULT_HOURS} hours)",
    )
    return options


def run(words: list[str]) -> int:
    """Run the command; returns the exit code."""
    arguments = command_parser(words[0]).parse_args(words[1:])
    try:
        from grpo_tui.cli import first_box

        with closing(_reader(first_box(arguments), arguments)) as reading:
            server_of(reading).run("stdio")
    except UserError as error:
        print(f"grpo-tui: {error}", file=sys.stderr)
        return exit_code(error.code)
    except KeyboardInterrupt:
        return 130
    return 0


def _reader(box: Box, arguments: argparse.Namespace) -> BoxReader:
    """What looks at the box, and acts on it where something is granted. Raises UserError (``bad_config``)."""
    if not arguments.allow:
        given = [name for name in ("run", "config", "budget_dollars", "until") if getattr(arguments, name)]
        if given:
            raise UserError(f"--{given[0].replace('_', '-')} needs --allow: nothing is granted", code="bad_config")
        return BoxReader(box, arguments.boxes)
    grant, configs = read_grant(box, arguments)
    return BoxActor(box, arguments.boxes, grant, configs, history_file().with_name(FILE))


def read_grant(box: Box, arguments: argparse.Namespace) -> tuple[Grant, dict[str, tuple[str, list[str]]]]:
    """The grant of a command line, and the configs it names. Raises UserError (``bad_config``)."""
    verbs = [word.strip() for word in arguments.allow.split(",") if word.strip()]
    for verb in verbs:
        if verb not in (*VERBS, CODE):
            raise UserError(f"--allow: unknown verb '{verb}'; {did_you_mean(verb, [*VERBS, CODE])}", code="bad_config")
    now, until, price = CLOCK.time(), None, box.price_at(CLOCK.time())
    if arguments.until:
        until = moment(arguments.until, now) if "-" in arguments.until else None
        if until is None or until <= now:
            problem = "expected a time to come, such as 2026-12-01T08:00"
            raise UserError(f"--until {arguments.until}: {problem}", code="bad_config")
    by, account_until, until = requester(), until, until or now + DEFAULT_HOURS * 3600
    if paid := [verb for verb in verbs if VERBS.get(verb) in PAID]:
        if not arguments.budget_dollars or not 0 < arguments.budget_dollars < 1e6:
            raise UserError(f"--allow {paid[0]} costs money: say how much with --budget-dollars N", code="bad_config")
        if not price:
            key = "set price_per_hour of the box in boxes.yaml"
            raise UserError(f"--allow {paid[0]} needs the price of '{box.name}': {key}", code="bad_config")
    if "launch" in verbs and not (arguments.config or CODE in verbs):
        raise UserError("--allow launch needs --config CFG: the config that may be launched", code="bad_config")
    configs: dict[str, tuple[str, list[str]]] = {}
    for given in arguments.config or []:
        name, text, _ = config_of(argparse.Namespace(cfg=given, set=None))
        configs[name.removeprefix("config/")] = text, notify_overrides(box.notify, text, [])
    grant = Grant(
        account_of(by, account_until), f"an assistant of {by}", verbs, list(arguments.run or []),
        {name: text_hash(text) for name, (text, _) in configs.items()},
        sorted({override for _, overrides in configs.values() for override in overrides}),
        arguments.budget_dollars, price, until,
    )  # fmt: skip
    return grant, configs


def server_of(reading: BoxReader) -> MCPServer:
    """The server of a box. Raises UserError (``bad_config``) where the package is missing."""
    try:
        from anyio import to_thread
        from mcp.server import MCPServer
        from mcp.server.mcpserver.exceptions import ToolError, UnexpectedToolError
        from mcp.types import ToolAnnotations
    except ImportError as error:
        raise UserError(
            f"the server needs the package mcp ({error}):  {install_command('mcp')}", code="bad_config"
        ) from error
    acting = reading.acts()

    class Server(MCPServer):
        """Has the calls written down that reach no tool: of unknown ones, and with other arguments."""

        async def call_tool(self, name: str, arguments: dict[str, Any], context: Any = None) -> Any:
            try:
                return await super().call_tool(name, arguments, context)
            except ToolError as error:
                if not isinstance(error, UnexpectedToolError) and not isinstance(error.__cause__, ToolError):
                    await to_thread.run_sync(reading.refuse_call, name, arguments, str(error))
                raise

    server = Server(
        "grpo-tui",
        instructions=instructions(reading.box.name, acts=bool(acting)),
        version=VERSION,
        log_level="CRITICAL",
    )
    looks = ToolAnnotations(read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False)
    acts = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=True, open_world_hint=False)
    changing = [tool.__name__ for tool in acting if tool.__name__ != "grant"]
    for tool in [*reading.tools(), *acting]:
        hints, description = acts if tool.__name__ in changing else looks, " ".join((tool.__doc__ or "").split())
        answering = _with_progress(reading) if tool.__name__ == "wait" else _answering(tool)
        server.add_tool(answering, tool.__name__, description=description, annotations=hints)

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


def _with_progress(reading: BoxReader) -> Callable[..., Any]:
    """The tool ``wait``, which reports the step to a client that takes progress."""
    import anyio.from_thread
    import anyio.to_thread
    from mcp.server.mcpserver import Context

    async def wait(
        ctx: Context,
        run: str,
        until: Literal["step", "end", "verdict", "evaluations"] = "end",
        step: int = 0,
        seconds: float = 30,
    ) -> dict[str, Any]:
        def said(done: int, total: int) -> None:
            anyio.from_thread.run(ctx.report_progress, done, total or None)

        watch = _answering(reading.watch)
        return await anyio.to_thread.run_sync(functools.partial(watch, run, until, step, seconds, said))

    wait.__annotations__ = {**wait.__annotations__, "ctx": Context}  # the server looks for it, not for its name
    return wait


def _answering(tool: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """A tool whose answer is marked, and whose errors reach the assistant as a sentence, with what to do."""
    from mcp.server.mcpserver.exceptions import ToolError

    @functools.wraps(tool)
    def answer(*given: Any, **named: Any) -> dict[str, Any]:
        try:
            found: dict[str, Any] = Texts().marked(tool(*given, **named))
            return found
        except UserError as error:
            hint = str(getattr(error, "hint", ""))
            raise ToolError(f"{error.code}: {error}" + (f"; {hint}" if hint else "")) from error

    return answer
