"""The checkout on this machine whose code ``grpo-tui sync`` brings to a box: its commit, its changes, as files."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from grpo_train.run_dir import sha256
from grpo_train.run_dir.code import Code
from grpo_train.run_dir.credentials import find_token
from grpo_train.run_dir.errors import UserError

MARKS = ("grpo_train", "scripts/setup.sh")
"""What a checkout of grpo-tui has."""
_SHOWN = 8
_PLAIN_DIFF = ("--cached", "--binary", "--full-index", "--no-ext-diff", "--no-textconv", "--no-color", "--no-renames")


@dataclass(frozen=True)
class Checkout:
    """A checkout of grpo-tui."""

    folder: Path
    commit: str
    subject: str
    """First line of the commit's message."""
    changes: list[str]
    """Files that are not as committed, as ``git status --porcelain`` prints them."""


def find_checkout(start: Path | None = None) -> Checkout:
    """The checkout around a folder (default: the working directory), else the one this program runs from.

    Raises UserError: ``no_checkout``, ``git``.
    """
    places = [start or Path.cwd()] + ([] if start else [Path(__file__).resolve().parent])
    for place in places:
        try:
            folder = Path(git(place, "rev-parse", "--show-toplevel"))
        except UserError as error:
            if error.code == "no_git":
                raise
            continue
        if all((folder / mark).exists() for mark in MARKS):
            return _read(folder)
    raise UserError(
        f"{places[0]} is not in a checkout of grpo-tui (a git repository with {' and '.join(MARKS)}); "
        "run it in your clone",
        code="no_checkout",
    )


def _read(folder: Path) -> Checkout:
    if git(folder, "rev-parse", "--is-shallow-repository") == "true":
        raise UserError(f"{folder} is a shallow clone; complete it with  git fetch --unshallow", code="no_checkout")
    commit, _, subject = git(folder, "log", "-1", "--format=%H %s").partition(" ")
    rows = git(folder, "status", "--porcelain", "--untracked-files=all").split("\n")
    return Checkout(folder, commit, subject, [row for row in rows if row])


def require_clean(checkout: Checkout) -> None:
    """Raises UserError (``dirty``) that names the files that are not as committed."""
    if not checkout.changes:
        return
    more = len(checkout.changes) - _SHOWN
    names = ", ".join(row.strip() for row in checkout.changes[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
    raise UserError(
        f"{checkout.folder} has changes that are not committed: {names}; commit them, or take them along with "
        "--with-changes",
        code="dirty",
    )


def write_patch(checkout: Checkout, file: Path) -> Code:
    """Write the changes, new files included, as a patch; returns the code with it. The index is left as it is.

    Raises UserError (``secret``) for changes with a token.
    """
    if not checkout.changes:
        return Code(checkout.commit)
    with tempfile.TemporaryDirectory() as scratch:
        index = Path(scratch) / "index"
        own = Path(git(checkout.folder, "rev-parse", "--path-format=absolute", "--git-path", "index"))
        if own.is_file():
            shutil.copyfile(own, index)  # so that only what was changed is read
        objects = Path(scratch) / "objects"
        objects.mkdir()
        store = git(checkout.folder, "rev-parse", "--path-format=absolute", "--git-path", "objects")
        variables = {
            "GIT_INDEX_FILE": str(index),
            "GIT_OBJECT_DIRECTORY": str(objects),
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": store,
        }
        git(checkout.folder, "add", "--all", variables=variables)
        plain = ("-c", "diff.noprefix=false", "-c", "diff.mnemonicPrefix=false")
        patch = _run(checkout.folder, [*plain, "diff", *_PLAIN_DIFF, checkout.commit], variables)
    if not patch:
        return Code(checkout.commit)
    _refuse_tokens(checkout.folder, patch.decode("utf-8", "replace"))
    file.write_bytes(patch)
    return Code(checkout.commit, sha256(file))


def _refuse_tokens(folder: Path, patch: str) -> None:
    """Raises UserError (``secret``) for a token in what a patch adds: each run keeps the patch."""
    for part in patch.split("\ndiff --git "):
        name = next((line[6:] for line in part.split("\n") if line.startswith("+++ b/")), "")
        added = "\n".join(line[1:] for line in part.split("\n") if line.startswith("+") and not line.startswith("+++ "))
        if secret := find_token(added):
            raise UserError(secret.explain(str(folder / name)), code="secret")


def write_bundle(checkout: Checkout, known: list[str], file: Path) -> bool:
    """Write the commits that a box lacks; returns whether there are any. ``known``: commits that it has."""
    ours = [commit for commit in known if _has(checkout.folder, commit)]
    if not git(checkout.folder, "rev-list", "--max-count=1", checkout.commit, *(f"^{commit}" for commit in ours)):
        return False
    if git(checkout.folder, "rev-parse", "HEAD") != checkout.commit:
        raise UserError(f"{checkout.folder}: HEAD has moved meanwhile; run it again", code="changed")
    git(checkout.folder, "bundle", "create", "--quiet", str(file), "HEAD", *(f"^{commit}" for commit in ours))
    return True


def _has(folder: Path, commit: str) -> bool:
    try:
        git(folder, "cat-file", "-e", f"{commit}^{{commit}}")
    except UserError:
        return False
    return True


def git(folder: Path, *arguments: str, variables: dict[str, str] | None = None) -> str:
    """What git prints. Raises UserError: ``no_git``, ``git`` with git's own words."""
    return _run(folder, list(arguments), variables or {}).decode("utf-8", "replace").rstrip("\n")


def _run(folder: Path, arguments: list[str], variables: dict[str, str]) -> bytes:
    program = shutil.which("git")
    if program is None:
        raise UserError("git is not installed on this machine; install it", code="no_git")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    done = subprocess.run(
        [program, "-c", "core.quotePath=false", *arguments],
        cwd=folder,
        env={**inherited, **variables, "GIT_OPTIONAL_LOCKS": "0"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
    )
    if done.returncode:
        words = done.stderr.decode("utf-8", "replace").strip() or f"exit code {done.returncode}"
        raise UserError(f"git in {folder}: {words}", code="git")
    return done.stdout
