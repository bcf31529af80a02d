"""Bringing the code of this machine to a box; see :mod:`remote.protocol.copies` for the lines.

    with Copier(box) as copier:
        sync(copier, with_changes=False)

git's own transport is not used: over the link, code arrives wherever the app does (paramiko, passphrases, jump hosts),
without a second login, and a sync that was cut continues.

What git prints of the checkout here is read, and a user configures what git prints: only plumbing commands, which do
not look at that, are used, and options where they do (``status``, ``add``).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from grpo_train.run_dir import sha256
from grpo_train.run_dir.code import Code
from grpo_train.run_dir.credentials import find_token
from grpo_train.run_dir.errors import UserError
from remote.copying import Copier
from remote.gate import message
from remote.protocol import ProtocolError
from remote.protocol.copies import BUNDLE, CLONE, PATCH, CopyStream, item_of, put_items, send_files, take_begun

MARKS = ("grpo_train", "scripts/setup.sh")
"""What a checkout of grpo-tui has."""
_SHOWN = 8
_PLAIN_DIFF = (
    *("-p", "--cached", "--binary", "--full-index", "--no-ext-diff", "--no-textconv", "--no-color", "--no-renames"),
    *("--unified=3", "--inter-hunk-context=0", "--src-prefix=a/", "--dst-prefix=b/", "--no-relative"),
    *("--submodule=short", "--ignore-submodules=none"),
)
_STATUS = ("status", "--porcelain", "--untracked-files=all", "--no-renames", "--ignore-submodules=none")
_OPTIONS = ("core.quotePath=false", "core.safecrlf=false", "core.hooksPath=/dev/null")
_LFS_POINTER = "version https://git-lfs.github.com/spec/v1"


@dataclass(frozen=True)
class Synced:
    """What a sync did."""

    commit: str
    patch: str
    """SHA-256 of the changes that came along; "" = none."""
    subject: str
    """First line of the commit's message; "" for a pull."""
    path: str
    """The checkout on the box."""
    size: int
    """Bytes that were sent."""
    needs_setup: bool
    """Whether the engine's environment has to be set up (again)."""

    left_out: list[str]
    """What of the checkout did not travel, each with its reason."""

    @property
    def code(self) -> Code:
        return Code(self.commit, self.patch)


def sync(copier: Copier, *, with_changes: bool, start: Path | None = None) -> Synced:
    """Bring HEAD of the checkout around ``start`` to the box; with ``code: clone``, pull there. Raises UserError.

    What does not travel is named before.
    """
    if copier.box.code == CLONE:
        return copier.over_connections(_pull)
    checkout = find_checkout(start)
    if not with_changes:
        require_clean(checkout)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        code, left_out = write_patch(checkout, folder / PATCH)
        copier.say_left_out(left_out)
        synced = copier.over_connections(lambda wire: _sync(copier, wire, checkout, code, folder))
    return replace(synced, left_out=left_out)


def _pull(wire: CopyStream) -> Synced:
    wire.put(op="code")
    reply = wire.take()
    code = Code.from_json(reply)
    if code is None:
        raise ProtocolError("a malformed answer to a sync")
    return Synced(code.commit, "", "", message(str(reply.get("path"))), 0, False, [])


def _sync(copier: Copier, wire: CopyStream, checkout: Checkout, code: Code, folder: Path) -> Synced:
    wire.put(op="code")
    known = wire.take().get("known")
    if not isinstance(known, list):
        raise ProtocolError("a malformed answer to a sync")
    commits = [commit for commit in map(str, known) if Code.from_json({"commit": commit})]
    files = [PATCH] if code.patch else []
    if write_bundle(checkout, commits, folder / BUNDLE):
        files.append(BUNDLE)
    items = [item for name in files if (item := item_of(folder / name, name))]
    wire.put(**code.to_json())
    put_items(wire, items)
    copier.tally.begin(items)
    send_files(wire, [(item, folder / item.path) for item in items], take_begun(wire), copier.tally)
    reply = wire.take()
    return Synced(
        code.commit, code.patch, checkout.subject, message(str(reply.get("path"))), copier.tally.travelled,
        bool(reply.get("needs_setup")), [],
    )  # fmt: skip


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
    """The checkout around a folder (default: the working directory); outside of any git repository, without a folder
    given, the one this program runs from.

    Raises UserError: ``no_checkout``, ``git``.
    """
    here = start or Path.cwd()
    around = _repository(here)
    place = around or (None if start else _repository(Path(__file__).resolve().parent))
    if place is not None:
        folder = Path(git(place, "rev-parse", "--show-toplevel"))
        if all((folder / mark).exists() for mark in MARKS):
            return _read(folder)
    what = f"the git repository around it, {around}, lacks" if around else "that is a git repository with"
    raise UserError(
        f"{here} is not in a checkout of grpo-tui: {what} {' and '.join(MARKS)}; run it in your clone",
        code="no_checkout",
    )


def _repository(place: Path) -> Path | None:
    """The innermost folder around a place that is a git repository, also one that git refuses."""
    place = Path(os.path.realpath(place))
    return next((each for each in (place, *place.parents) if _is_repository(each)), None)


def _is_repository(folder: Path) -> bool:
    return os.path.lexists(folder / ".git") or ((folder / "HEAD").is_file() and (folder / "objects").is_dir())


def _read(folder: Path) -> Checkout:
    if git(folder, "rev-parse", "--is-shallow-repository") == "true":
        raise UserError(f"{folder} is a shallow clone; complete it with  git fetch --unshallow", code="no_checkout")
    shown = git(folder, "rev-list", "--max-count=1", "--encoding=UTF-8", "--format=%s", "HEAD", "--")
    commit, _, subject = shown.removeprefix("commit ").partition("\n")
    rows = git(folder, *_STATUS).split("\n")
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


def write_patch(checkout: Checkout, file: Path) -> tuple[Code, list[str]]:
    """Write the changes, new files included, as a patch; returns the code with it, and what of the checkout is neither
    in the commit nor in the patch. The index is left as it is.

    Raises UserError (``secret``) for changes with a token.
    """
    if not checkout.changes:
        return Code(checkout.commit), _left_out(checkout.folder, {})
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
        patch = _run(checkout.folder, ["diff-index", *_PLAIN_DIFF, checkout.commit, "--"], variables)
        left_out = _left_out(checkout.folder, variables)
    if not patch:
        return Code(checkout.commit), left_out
    _refuse_tokens(checkout.folder, patch.decode("utf-8", "replace"))
    file.write_bytes(patch)
    return Code(checkout.commit, sha256(file)), left_out


def _left_out(folder: Path, variables: dict[str, str]) -> list[str]:
    """What git stores only a reference to: repositories within the checkout, and files of Git LFS."""
    staged = [row.partition("\t") for row in git(folder, "ls-files", "-z", "--stage", variables=variables).split("\0")]
    found = [f"{path}/ (a git repository of its own)" for mode, _, path in staged if mode.startswith("160000 ")]
    of_lfs = ":(attr:filter=lfs)"
    if git(folder, "ls-files", "-z", of_lfs, variables=variables):
        search = ["grep", "--cached", "-l", "-z", "-F", "--no-recurse-submodules", _LFS_POINTER, "--", of_lfs]
        pointers = _run(folder, search, variables, may_find_nothing=True).decode("utf-8", "replace")
        found += [f"{path} (Git LFS: only its pointer travels)" for path in pointers.split("\0") if path]
    return found


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
    return bool(git(folder, "rev-list", "--no-walk", "--ignore-missing", f"{commit}^{{commit}}"))


def git(folder: Path, *arguments: str, variables: dict[str, str] | None = None) -> str:
    """What git prints. Raises UserError: ``no_git``, ``git`` with git's own words."""
    return _run(folder, list(arguments), variables or {}).decode("utf-8", "replace").rstrip("\n")


def _run(folder: Path, arguments: list[str], variables: dict[str, str], *, may_find_nothing: bool = False) -> bytes:
    program = shutil.which("git")
    if program is None:
        raise UserError("git is not installed on this machine; install it", code="no_git")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    here_only = os.path.realpath(folder.parent)  # where git refuses this repository, it must not take one around it
    done = subprocess.run(
        [program, *(word for option in _OPTIONS for word in ("-c", option)), *arguments],
        cwd=folder,
        env={**inherited, **variables, "GIT_OPTIONAL_LOCKS": "0", "GIT_CEILING_DIRECTORIES": here_only},
        stdin=subprocess.DEVNULL,
        capture_output=True,
    )
    if done.returncode and not (may_find_nothing and done.returncode == 1 and not done.stderr):
        words = done.stderr.decode("utf-8", "replace").strip() or f"exit code {done.returncode}"
        raise UserError(f"git in {folder}: {words}", code="git")
    return done.stdout
