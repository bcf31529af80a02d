"""Configs of other libraries as one of ours: ``grpo-train import-config`` and the tables of docs/from-*.md. Torch-free.

Each option of a library is a row of one table (:mod:`trl <grpo_train.config.importing.trl>`,
:mod:`verl <grpo_train.config.importing.verl>`): the keys that it becomes, or what to do where nothing does the same.
"""

from __future__ import annotations

from grpo_train.config.importing.reading import read_options
from grpo_train.config.importing.table import Draft, Library
from grpo_train.config.importing.trl import TRL
from grpo_train.config.importing.verl import VERL
from grpo_train.config.loading import refuse_secrets

__all__ = ["LIBRARIES", "import_config"]

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
