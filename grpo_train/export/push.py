"""Pushing an export to the Hugging Face hub, as one commit. Torch-free.

The token comes from ``HF_TOKEN`` or from the file of ``hf auth login``, which no other account may read; it is sent in
a header only and is never printed.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_train.export.plan import ExportError
from grpo_train.export.write import RECORD, Exported
from grpo_train.platforms.hub_models import hub_api
from grpo_train.run_dir.files import read_json

VARIABLES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack")
"""Suffixes of files that hold weights on the hub."""


@dataclass(frozen=True)
class HubRepository:
    """A repository of the hub and the right to write to it."""

    repository: str
    private: bool
    token: str

    def __repr__(self) -> str:
        return f"Destination({self.repository!r}, private={self.private})"  # without the token


def check_destination(repository: str, private: bool) -> HubRepository:
    """Check name, token and account before anything is exported. Raises ExportError (``no_token``, ``no_hub``)."""
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]{0,95}", repository):
        raise ExportError(f"--push {repository}: use OWNER/NAME, e.g. --push my-account/my-model")
    to = HubRepository(repository, private, hub_token())
    with _explained(to):
        _api(to).whoami()
    return to


def hub_token() -> str:
    """The user's token for the hub. Raises ExportError (``no_token``) without one or where others can read its file."""
    from huggingface_hub import constants

    for variable in VARIABLES:
        if token := os.environ.get(variable, "").strip():
            return token
    file = Path(constants.HF_TOKEN_PATH)
    try:
        mode, token = stat.S_IMODE(file.stat().st_mode), file.read_text(encoding="utf-8").strip()
    except OSError:
        mode, token = 0, ""
    if not token:
        raise ExportError(f"--push needs a token: set {VARIABLES[0]}, or run 'hf auth login'", code="no_token")
    if mode & 0o077:
        reason = f"other accounts can read the token in {file} (mode {mode:o})"
        raise ExportError(f"{reason}: chmod 600 {file}", code="no_token")
    return token


def push(exported: Exported, to: HubRepository) -> str:
    """Upload an export; returns the address of the commit.

    A repository with other weights is refused (``exists``); with the same weights, the other files are updated. Raises
    ExportError; the export stays where it is.
    """
    from huggingface_hub.errors import RepositoryNotFoundError

    api, folder = _api(to), Path(exported.folder)
    with _explained(to, exported):
        try:
            info = api.model_info(to.repository, files_metadata=True)
        except RepositoryNotFoundError:
            api.create_repo(to.repository, private=to.private)
            info = api.model_info(to.repository, files_metadata=True)
        _refuse_other_weights(info, folder, to)
        if to.private and not info.private:
            raise ExportError(f"{to.repository} exists already and is public; remove --private or choose another name")
        commit = api.upload_folder(
            repo_id=to.repository,
            folder_path=folder,
            commit_message=f"{(read_json(folder / RECORD) or {}).get('training_run')}, exported by grpo-tui",
            parent_commit=info.sha,  # a push by somebody else in between fails
        )
    return str(commit.commit_url)


def weights_of(info: Any) -> dict[str, str]:
    """Files with weights of a hub model (with their metadata), and the SHA-256 of each; "" where the hub has none."""
    return {
        file.rfilename: str(file.lfs.sha256) if file.lfs else ""
        for file in info.siblings or []
        if file.rfilename.endswith(WEIGHTS)
    }


def _refuse_other_weights(info: Any, folder: Path, to: HubRepository) -> None:
    ours = (read_json(folder / RECORD) or {}).get("files") or {}
    others = [name for name, digest in weights_of(info).items() if ours.get(name) != digest]
    if others:
        raise ExportError(
            f"{to.repository} exists already and holds other weights ({', '.join(sorted(others)[:3])}); "
            "push to another name",
            code="exists",
        )


def _api(to: HubRepository) -> Any:
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()
    return hub_api(to.token)


@contextmanager
def _explained(to: HubRepository, exported: Exported | None = None) -> Iterator[None]:
    """Turn what the hub's client and the HTTP client below it raise into an ExportError without the token."""
    from huggingface_hub.errors import HfHubHTTPError

    try:
        yield
    except ExportError as error:
        raise ExportError(f"{error}{_kept(exported)}", code=error.code) from error
    except HfHubHTTPError as error:
        status = error.response.status_code
        reason = error.server_message or str(error).strip().splitlines()[0]
        if status in (401, 403):
            reason = f"the hub refuses the token (HTTP {status}): it must be valid and may write to {to.repository}"
        message = f"cannot push to {to.repository}: {reason}".replace(to.token, "…")
        raise ExportError(f"{message}{_kept(exported)}", code="no_hub") from None
    except Exception as error:  # of the HTTP client, which changes between versions
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].replace(to.token, "…")
        raise ExportError(f"cannot push to {to.repository}: {reason}{_kept(exported)}", code="no_hub") from None


def _kept(exported: Exported | None) -> str:
    return f" (the export is kept in {exported.folder}; rerun the command to push it)" if exported else ""
