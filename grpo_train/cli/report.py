"""``grpo-train report``: one file about a run, or about several compared, to send to a colleague."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from grpo_train.cli.options import Root
from grpo_train.cli.output import fail
from grpo_train.run_dir import resolve_root
from grpo_train.run_dir.files import atomic_write

SUFFIXES = (".html", ".md")


def report(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Run names (see grpo-train runs) or paths.")],
    output: Annotated[
        list[Path] | None,
        typer.Option("-o", "--output", help="File to write: .html or .md (default: RUN.html; repeatable)."),
    ] = None,
    price: Annotated[float | None, typer.Option(min=0.0, help="Price of the box in dollars per hour.")] = None,
    root: Root = None,
) -> None:
    """Write a report of a run, or a comparison of several, as one HTML or Markdown file."""
    from grpo_train.report.html import to_html
    from grpo_train.report.markdown import to_markdown
    from grpo_train.report.page import lay_out
    from grpo_train.report.report import make_report

    for file in output or []:
        if file.suffix.lower() not in SUFFIXES:
            fail(f"-o {file}: unknown format '{file.suffix}'; name the file .html or .md", 2)
        if not file.absolute().parent.is_dir():
            fail(f"-o {file}: {file.parent} is not a directory", 2)
    made = make_report(resolve_root(root), runs, price)
    page = lay_out(made)
    for file in output or [Path("comparison.html" if made.is_comparison else f"{made.runs[0].name}.html")]:
        text = to_html(page) if file.suffix.lower() == ".html" else to_markdown(page)
        atomic_write(file, text)
        print(f"{file}  {len(text.encode()) / 1000:,.0f} kB")
    for problem in made.problems:
        print(f"warning: {problem}", file=sys.stderr)
