"""Datasets of the Hugging Face hub, ``hf:OWNER/NAME[:CONFIG][@COMMIT]``, at a commit, from the cache if it has them.

``datasets`` downloads and caches them. What the cache holds at a commit is read without asking the hub; ``datasets``
itself would take the newest cached commit, whatever was asked for, where the hub does not answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

from grpo_train.run_dir.errors import did_you_mean
from grpo_train.run_dir.signs import downloading
from grpo_train.tasks.shared.base import TaskError
from grpo_train.tasks.shared.data_rows import Located, arrow_rows
from grpo_train.tasks.shared.hub import hub_answers

SCHEME = "hf:"
BATCH = 1000
"""Rows that are read at once."""


@dataclass(frozen=True)
class HubDataset:
    """A dataset of the hub."""

    name: str
    """OWNER/NAME."""
    config: str | None = None
    """One of its configurations ("subsets" on its page); None = the only one, or its default."""
    revision: str | None = None
    """Commit, branch or tag; None = the newest commit."""

    def __str__(self) -> str:
        config, revision = (f":{self.config}" if self.config else ""), (f"@{self.revision}" if self.revision else "")
        return f"{SCHEME}{self.name}{config}{revision}"

    @property
    def commit(self) -> str | None:
        """The commit that it is pinned to."""
        return self.revision if re.fullmatch(r"[0-9a-f]{40}", self.revision or "") else None


def is_hub_path(path: str | None) -> bool:
    """Whether a ``task.path`` is a dataset of the hub."""
    return path is not None and path.startswith(SCHEME)


def parse_hub_path(path: str) -> HubDataset:
    """The dataset of ``hf:OWNER/NAME[:CONFIG][@COMMIT]``. Raises TaskError."""
    match = re.fullmatch(rf"{SCHEME}([\w.-]+/[\w.-]+)(?::([^@:/]+))?(?:@([^@:]+))?", path)
    if not match:
        raise TaskError(
            f"task.path: '{path}': expected hf:OWNER/NAME, hf:OWNER/NAME:CONFIG or hf:OWNER/NAME:CONFIG@COMMIT"
        )
    return HubDataset(match[1], match[2], match[3])


def pinned_path(path: str) -> str:
    """A ``task.path`` with its configuration and commit; downloads what is not in the cache. Raises TaskError."""
    return str(open_dataset(parse_hub_path(path)).hub)


@dataclass(frozen=True)
class OpenDataset:
    """A dataset whose files are in the cache."""

    hub: HubDataset
    """With its configuration and commit."""
    _builder: Any

    @property
    def splits(self) -> list[str]:
        """The names of its splits."""
        return list(self._builder.info.splits or {})

    def rows(self, split: str) -> Iterator[Located]:
        """The rows of a split, or of a part of one such as ``train[:80%]``; they count from 0. Raises TaskError."""
        if split.partition("[")[0] not in self.splits:
            hint = did_you_mean(split, self.splits, "it has")
            raise TaskError(f"task.splits: {self.hub} has no split '{split}'; {hint}")
        try:
            table = self._builder.as_dataset(split=split)
        except (ValueError, AssertionError) as error:  # train[:80], train[x%]
            raise TaskError(f"task.splits: '{split}' of {self.hub}: {str(error).splitlines()[0]}") from error
        numbers = count()
        batches = table.with_format("arrow").iter(BATCH)
        return (row for batch in batches for row in arrow_rows(batch, f"{self.hub} {split}", numbers))


def open_dataset(hub: HubDataset) -> OpenDataset:
    """Open a dataset from the cache, or download it first. Raises TaskError, with a code of its own where the hub or
    its owner is the reason."""
    if hub.commit and hub.config and (cached := _cached(hub)):
        return cached
    answers = hub_answers(hub.name, kind="dataset")
    pinned = hub if hub.commit else replace(hub, revision=_newest(hub) if answers else _newest_cached(hub))
    if (pinned.config or not answers) and (cached := _cached(pinned)):
        return cached
    if not answers:
        raise _not_cached(hub)
    return _downloaded(pinned)


def _newest(hub: HubDataset) -> str:
    """The commit of a branch or tag (default: main) on the hub; the cache remembers it."""
    from huggingface_hub import HfApi, hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    try:
        try:
            readme = hf_hub_download(hub.name, "README.md", repo_type="dataset", revision=hub.revision)
            return Path(readme).parent.name
        except EntryNotFoundError:
            return str(HfApi().dataset_info(hub.name, revision=hub.revision).sha)
    except Exception as error:  # the hub's client and the HTTP client below it raise many types
        raise _explained(hub, error) from error


def _newest_cached(hub: HubDataset) -> str:
    """The commit of a branch or tag when the hub answered last. Raises TaskError."""
    reference = _downloads_of(hub) / "refs" / (hub.revision or "main")
    try:
        return reference.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise _not_cached(hub) from error


def _downloaded(hub: HubDataset) -> OpenDataset:
    import datasets  # takes a second to import

    try:
        with downloading(_downloads_of(hub)):
            builder = datasets.load_dataset_builder(hub.name, hub.config, revision=hub.commit)
            if builder.hash != hub.commit:  # the hub failed in between, and this is another commit from the cache
                raise _not_cached(hub)
            builder.download_and_prepare()
    except TaskError:  # the hub failed in between
        raise
    except Exception as error:  # datasets, the hub's client and the network raise many types
        raise _explained(hub, error) from error
    return OpenDataset(replace(hub, config=builder.config.name), builder)


def _cached(hub: HubDataset) -> OpenDataset | None:
    """The dataset from the cache, which holds a commit only when it is complete."""
    import datasets
    from datasets.naming import camelcase_to_snakecase
    from datasets.packaged_modules.cache.cache import Cache

    owner, _, name = hub.name.partition("/")
    folder = Path(datasets.config.HF_DATASETS_CACHE).expanduser() / f"{owner}___{camelcase_to_snakecase(name)}"
    found = [each for each in folder.glob(f"*/*/{hub.commit}") if (each / "dataset_info.json").is_file()]
    matching = [each for each in found if hub.config in (None, each.parts[-3])]
    if len(matching) != 1:
        return None
    config, version, commit = matching[0].parts[-3:]
    builder = Cache(dataset_name=name, repo_id=hub.name, config_name=config, version=version, hash=commit)
    return OpenDataset(replace(hub, config=config), builder)


def _downloads_of(hub: HubDataset) -> Path:
    """Where the hub's client keeps the files of a dataset."""
    from huggingface_hub.constants import HF_HUB_CACHE

    return Path(HF_HUB_CACHE) / f"datasets--{hub.name.replace('/', '--')}"


def _not_cached(hub: HubDataset) -> TaskError:
    return TaskError(
        f"task.path: {hub} is not in this machine's cache, and the hub does not answer; connect the machine (or unset "
        "HF_HUB_OFFLINE), or set task.path to a copy of its files",
        code="no_dataset",
    )


def _explained(hub: HubDataset, error: Exception) -> TaskError:
    """What the hub, its client or ``datasets`` raised, with what to do."""
    from huggingface_hub.constants import ENDPOINT
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    chain: list[BaseException] = [error]
    while following := chain[-1].__cause__ or chain[-1].__context__:
        chain.append(following)

    def is_any(kind: type[BaseException]) -> bool:
        return any(isinstance(each, kind) for each in chain)

    text = str(error).strip()
    if is_any(GatedRepoError) or "is a gated dataset" in text:
        return TaskError(
            f"task.path: {hub.name} is gated: accept its terms at {ENDPOINT}/datasets/{hub.name} and set HF_TOKEN on "
            "this machine (or run hf auth login)",
            code="gated",
        )
    if is_any(RevisionNotFoundError):
        return TaskError(
            f"task.path: {hub.name} has no commit '{hub.revision}' (mistyped, or removed by its owner): remove "
            f"@{hub.revision} to use the newest one",
            code="no_dataset",
        )
    if is_any(RepositoryNotFoundError):
        return TaskError(
            f"task.path: the hub has no dataset {hub.name}, or it is private: check the name, or set HF_TOKEN",
            code="no_dataset",
        )
    if configs := re.search(r"(?:Available|available configs): \[(.*?)\]", text):
        names = re.findall(r"'([^']+)'", configs[1])
        if hub.config is None:
            example = f"{SCHEME}{hub.name}:{names[0]}" if names else f"{SCHEME}{hub.name}:CONFIG"
            return TaskError(
                f"task.path: {hub.name} has several configs, {', '.join(names)}: name one, as in {example}"
            )
        return TaskError(
            f"task.path: {hub.name} has no config '{hub.config}'; {did_you_mean(hub.config, names, 'it has')}"
        )
    return TaskError(f"task.path: cannot load {hub}: {text.splitlines()[0] if text else type(error).__name__}")
