"""Configs of other libraries as one of ours: ``grpo-train import-config`` and the tables of docs/from-*.md. Torch-free.

Each option of a library is a row of one table (:mod:`trl <grpo_train.config.importing.trl>`,
:mod:`verl <grpo_train.config.importing.verl>`): the keys that it becomes, or what to do where nothing does the same.
"""

from __future__ import annotations

from collections.abc import Iterator

from grpo_train.config.importing.reading import read_options
from grpo_train.config.importing.table import Draft, Library, Row
from grpo_train.config.importing.trl import TRL
from grpo_train.config.importing.verl import VERL
from grpo_train.config.loading import refuse_secrets

__all__ = ["LIBRARIES", "import_config", "markdown_tables"]

LIBRARIES: dict[str, Library] = {"trl": TRL, "verl": VERL}


def import_config(text: str, source: str, nproc: int | None = None) -> Draft:
    """Translate a config or a script of another library. Raises ConfigError.

    ``nproc``: number of processes, where the file does not say it.
    """
    refuse_secrets(text, (), source)
    library, given = read_options(text, source)
    draft = Draft(LIBRARIES[library], given, source, nproc)
    draft.translate()
    return draft


def markdown_tables(library: Library) -> str:
    """The tables of a page: what is translated, what is not, and what is not needed."""
    return "\n".join(_tables(library))


def _tables(library: Library) -> Iterator[str]:
    rows = library.rows.values()
    yield f"## What becomes which key\n\n| {library.label} | default there | key | conversion |\n|---|---|---|---|"
    for row in rows:
        if row.to:
            keys = ", ".join(f"`{key}`" for key in row.to)
            yield f"| `{row.name}` | {_default(row)} | {keys} | {_cell(row.how)} |"
    yield "\n## What has no equivalent\n"
    yield "With another value than the default, something else is learned here; `import-config` names it.\n"
    yield "| option | default there | instead |\n|---|---|---|"
    yield from (f"| `{row.name}` | {_default(row)} | {_cell(row.how)} |" for row in rows if row.matters)
    yield "\n## What is not needed\n\nIt does not change what is learned.\n\n| options | here |\n|---|---|"
    reasons = dict.fromkeys(row.how for row in rows if not row.to and not row.matters)
    for reason in reasons:
        names = ", ".join(f"`{row.name}`" for row in rows if not row.to and not row.matters and row.how == reason)
        yield f"| {names} | {_cell(reason)} |"
    yield ""


def _default(row: Row) -> str:
    return "" if row.default is None else f"`{row.default}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
