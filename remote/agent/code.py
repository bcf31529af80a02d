"""Code on this box: git, what ``grpo-tui sync`` brings, and a working tree for each launch.

Below ``~/.grpo``::

    code.git/                every commit that was synced
    code/                    the checkout at the last one (or 'repo' of boxes.yaml); its .venv has the engine
    worktrees/COMMIT[-…]/    what a run imports: a later sync does not change it
    worktrees/COMMIT[-…].runs    who used it, for :func:`prune`
    patches/SHA256           changes that were not committed
    code.json                what was synced last
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from grpo_train.run_dir import RunDir, sha256
from grpo_train.run_dir.code import CODE_FILE, Code, read_code, write_code
from grpo_train.run_dir.files import (
    append_jsonl,
    atomic_write,
    open_lock,
    read_json,
    read_jsonl,
    remove_tree,
    to_json,
    utc_now,
)
from grpo_train.run_dir.status import REQUEUED
from remote.agent.box import BoxContext
from remote.protocol import RemoteError
from remote.protocol.copies import NOW, THEN

LIMIT_S = 300.0
"""A home directory on a network disk is slow."""
_OPTIONS = (
    *("core.hooksPath=/dev/null", "core.fsmonitor=false", "core.autocrlf=false", "core.eol=lf"),
    *("advice.detachedHead=false", "safe.directory=*", "safe.bareRepository=all", "protocol.file.allow=always"),
    *("submodule.recurse=false", "fetch.recurseSubmodules=false", "apply.ignoreWhitespace=no"),
    *("filter.lfs.process=", "filter.lfs.smudge=", "filter.lfs.clean=", "filter.lfs.required=false"),
)
"""What of the account's own configuration would change what git does here. Files of Git LFS stay pointers."""
_NEVER_ASK = {"GIT_TERMINAL_PROMPT": "0", "GIT_SSH_COMMAND": "ssh -o BatchMode=yes", "GIT_ASKPASS": "/bin/false"}


def checkout_git(folder: Path, *arguments: str) -> str:
    """What git prints in a folder that is the top of its repository, or bare; it never asks anything.

    Raises RemoteError: ``no_git``, ``checkout_git`` with git's own words.
    """
    program = shutil.which("git")
    if program is None:
        raise RemoteError("no_git", "git is not installed on this box", "sudo apt-get install -y git")
    options = [word for option in _OPTIONS for word in ("-c", option)]
    try:
        done = subprocess.run(
            [program, *options, *arguments],
            cwd=folder,
            env={**os.environ, **_NEVER_ASK, "GIT_CEILING_DIRECTORIES": os.path.realpath(folder.parent)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=LIMIT_S,
        )
    except subprocess.TimeoutExpired as error:
        message = f"git {arguments[0]} has not ended within {LIMIT_S:.0f} s in {folder}"
        raise RemoteError("git", message) from error
    if done.returncode:
        words = done.stderr.decode(errors="replace").strip() or f"exit code {done.returncode}"
        raise RemoteError("git", f"git {arguments[0]} in {folder}: {words}")
    return done.stdout.decode(errors="surrogateescape").rstrip("\n")


KEPT_S = 14 * 86_400.0
"""A working tree is kept this long after its last run has ended."""
STALE_LOCK_S = 5.0
MAX_KNOWN = 500
SETUP_FILES = ("pyproject.toml", "setup.py", "scripts/setup.sh")
"""Where one of them changes, the engine's environment has to be set up again."""


def _home() -> Path:
    return Path("~/.grpo").expanduser()


def folder() -> Path:
    """``~/.grpo``, made where it is missing. Raises OSError."""
    _home().mkdir(mode=0o700, parents=True, exist_ok=True)
    return _home()


def _store() -> Path:
    return _home() / "code.git"


def _trees() -> Path:
    return _home() / "worktrees"


def _patch(sha256: str) -> Path:
    return _home() / "patches" / sha256


# -------------------------------------------------------------------------------------------------------------- sync


def current(box: BoxContext) -> Code | None:
    """The code that was synced last; None on a box that trains with its own checkout.

    Raises RemoteError ``no_code`` where ``code: sync`` is set and nothing was synced.
    """
    if not box.is_synced:
        return None
    found = Code.from_json(read_json(_home() / CODE_FILE))
    if found is None and box.settings.code:
        raise no_code("nothing was synced to this box")
    return found


def no_code(message: str) -> RemoteError:
    return RemoteError("no_code", message, "on your machine, in the checkout: grpo-tui sync --box NAME")


def known_commits() -> list[str]:
    """The commits that were synced, the newest first."""
    if not _store().is_dir():
        return []
    newest = ("--sort=-creatordate", f"--count={MAX_KNOWN}")
    return checkout_git(_store(), "for-each-ref", *newest, "--format=%(objectname)", "refs/synced").split()


def require_sync(box: BoxContext) -> Path:
    """The place of the checkout. Raises RemoteError where this box trains with other code."""
    if not box.is_synced:
        message = f"this box trains with the checkout {box.repo} ('repo' in boxes.yaml)"
        raise RemoteError(
            "not_synced", message, "set 'code: sync' to replace it by yours, or 'code: clone' to pull there"
        )
    place = box.synced_checkout
    if place.exists() and not _is_ours(place):
        message = f"{place} exists, and grpo-tui sync did not make it"
        raise RemoteError("exists", message, "move it away, or correct 'repo' in boxes.yaml")
    if place.exists() and (edited := _edited(place)):
        message = f"{place} was edited on this box: {', '.join(edited[:5])}{' …' if len(edited) > 5 else ''}"
        raise RemoteError("edited", message, f"on the box, in {place}: git stash --include-untracked")
    return place


def _is_ours(place: Path) -> bool:
    if not os.path.lexists(place / ".git"):
        return False
    store = checkout_git(place, "rev-parse", "--path-format=absolute", "--git-common-dir")
    return os.path.realpath(store) == os.path.realpath(_store())


def _edited(place: Path) -> list[str]:
    """Files that are neither as committed nor as patched (a patch is in the index)."""
    rows = checkout_git(place, "status", "--porcelain", "-z", "--no-renames", "--untracked-files=normal").split("\0")
    return [row[3:] for row in rows if row[1:2] not in ("", " ")]


def accept(place: Path, code: Code, bundle: Path | None, patch: Path | None) -> bool:
    """Take commits and changes, and move the checkout to them; returns whether the engine has to be set up (again).

    ``bundle``: the commits that were missing here. Raises RemoteError.
    """
    store = _store()
    with _alone():
        if not (store / "HEAD").is_file():
            remove_tree(store)
            checkout_git(folder(), "init", "--quiet", "--bare", "--template=", store.name)
        _remove_stale_locks()
        if bundle is not None:
            checkout_git(store, "fetch", "--quiet", str(bundle), f"HEAD:refs/synced/{code.commit}")
        checkout_git(store, "update-ref", f"refs/synced/{code.commit}", code.commit)
        if patch is not None:
            _keep_patch(code, patch)
        _tree(code)  # tried first: a patch that does not apply leaves the checkout as it was
        before = Code.from_json(read_json(folder() / CODE_FILE))
        if place.exists():
            checkout_git(place, "checkout", "--quiet", "--force", "--detach", code.commit)
        else:
            _add_tree(place, Code(code.commit))
        if code.patch:
            checkout_git(place, "apply", "--index", "--whitespace=nowarn", str(_patch(code.patch)))
        atomic_write(folder() / CODE_FILE, to_json({**code.to_json(), "synced_at": utc_now()}) + "\n")
    if before is None or not (place / ".venv").is_dir():
        return True
    return bool(checkout_git(place, "diff-index", "--cached", "--name-only", before.commit, "--", *SETUP_FILES))


def pull(box: BoxContext) -> Code:
    """``git pull --ff-only`` in the checkout; returns its commit. Raises RemoteError with git's words."""
    if box.repo is None or not box.repo.is_dir():
        missing = f"{box.repo} does not exist" if box.repo else "no checkout is configured for this box"
        raise RemoteError("no_repo", missing, "'code: clone' needs 'repo' in boxes.yaml: a clone on the box")
    checkout_git(box.repo, "pull", "--quiet", "--ff-only")
    return Code(checkout_git(box.repo, "rev-parse", "HEAD"))


# ----------------------------------------------------------------------------------------------------- working trees


def for_session(box: BoxContext, dry_run: bool) -> tuple[BoxContext, Code | None]:
    """The box as a new session sees it, with its own working tree of the code that was synced last; and that code."""
    code = current(box)
    return (box if code is None or dry_run else box.at(worktree(code))), code


def for_resume(box: BoxContext, run: RunDir, choice: str) -> Code | None:
    """The code that a resume takes: that of the run (``then``) or what was synced last (``now``); None without either.

    Raises RemoteError: ``code_differs`` where they differ and nothing was chosen, ``no_code`` where ``now`` is nothing.
    """
    then, now = read_code(run.path, run.read_launch()), current(box)
    if then is None or not box.is_synced:
        return now
    if choice == NOW:
        if now is None:
            raise no_code("nothing was synced to this box")
        return now
    if choice == "" and now is not None and then != now:
        message = f"the code of {run.name} differs: {then} then, {now} now"
        raise RemoteError("code_differs", message, f"resume it with --code {THEN} or --code {NOW}")
    return then


def record(run: RunDir, code: Code | None) -> None:
    """Record which code a run is started with, and save its changes in the run, beside those of earlier starts."""
    if code is None:
        return
    file = run.path / code.patch_file
    if code.patch and not file.exists():
        atomic_write(file, _patch(code.patch).read_bytes())
    if read_code(run.path, run.read_launch()) != code:
        write_code(run.path, code)
        run.log_event("code", commit=code.commit, patch=code.patch)
    append_jsonl(_uses(code), {"time": time.time(), "root": str(run.root), "run": run.name})


def worktree(code: Code, run: RunDir | None = None) -> Path:
    """The working tree of some code, made where it is missing. ``run``: one that may have its patch.

    Raises RemoteError ``no_code`` for a commit that is not on this box.
    """
    with _alone():
        if run is not None and code.patch and not _patch(code.patch).is_file():
            with suppress(OSError):
                if sha256(run.path / code.patch_file) == code.patch:
                    _keep_patch(code, run.path / code.patch_file)
        made = _tree(code)
        append_jsonl(_uses(code), {"time": time.time()})
        return made


def _keep_patch(code: Code, file: Path) -> None:
    kept = _patch(code.patch)
    kept.parent.mkdir(mode=0o700, exist_ok=True)
    atomic_write(kept, file.read_bytes(), mode=0o600)


def _tree(code: Code) -> Path:
    """The working tree of some code; the lock must be held."""
    trees, place = _trees(), _trees() / code.folder
    if place.is_dir():
        return place
    if not _store().is_dir() or not _has(code.commit):
        raise no_code(f"commit {code.commit} is not on this box")
    if code.patch and not _patch(code.patch).is_file():
        raise no_code(f"the changes {code.patch[:10]} to commit {code.commit} are not on this box")
    trees.mkdir(mode=0o700, exist_ok=True)
    _add_tree(place, code)
    return place


def _add_tree(place: Path, code: Code) -> None:
    """Make a working tree, and put it in place by a rename."""
    part = place.with_name(f".new-{place.name}")
    remove_tree(part)  # of an agent that was killed, whose git has left it locked: the second --force
    checkout_git(_store(), "worktree", "prune")
    checkout_git(_store(), "worktree", "add", "--quiet", "--force", "--force", "--detach", str(part), code.commit)
    try:
        if code.patch:
            checkout_git(part, "apply", "--index", "--whitespace=nowarn", str(_patch(code.patch)))
        checkout_git(_store(), "worktree", "move", str(part), str(place))
    except RemoteError:
        remove_tree(part)
        raise


def _remove_stale_locks() -> None:
    """git does not remove the locks of a git that was killed."""
    for file in _store().rglob("*.lock"):
        with suppress(OSError):
            if time.time() - file.stat().st_mtime > STALE_LOCK_S:
                file.unlink()


def _has(commit: str) -> bool:
    """Whether a commit was synced, alone or with a later one."""
    return bool(checkout_git(_store(), "rev-list", "--no-walk", "--ignore-missing", f"{commit}^{{commit}}"))


def _uses(code: Code) -> Path:
    return _trees() / f"{code.folder}.runs"


@contextmanager
def _alone() -> Iterator[None]:
    """One change at a time."""
    import fcntl

    descriptor = open_lock(folder() / ".code.lock")
    try:
        with suppress(OSError):  # a mount without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


# ------------------------------------------------------------------------------------------------------------ prune


def prune(now: float) -> list[str]:
    """Remove the working trees that nothing has used for KEPT_S; returns their names.

    Patches, which the runs have, too, and what cut syncs left behind are removed by their age.
    """
    trees = _trees()
    if not trees.is_dir():
        return []
    with _alone():
        synced = Code.from_json(read_json(folder() / CODE_FILE))
        old = [
            file.stem
            for file in trees.glob("*.runs")
            if not (synced and file.stem == synced.folder) and now - _last_use(file, now) > KEPT_S
        ]
        for name in old:
            with suppress(RemoteError):
                checkout_git(_store(), "worktree", "remove", "--force", str(trees / name))
            shutil.rmtree(trees / name, ignore_errors=True)
            if not (trees / name).exists():
                (trees / f"{name}.runs").unlink(missing_ok=True)
        left = [*(_home() / "patches").glob("*"), *(_home() / "incoming").glob("*")]
        for path in (path for path in left if not (synced and path.name == synced.patch)):
            with suppress(OSError):
                if now - path.stat().st_mtime > KEPT_S:
                    remove_tree(path) if path.is_dir() else path.unlink()
    return old


def _last_use(file: Path, now: float) -> float:
    """When a working tree was used last: now, while a run of it is live or waits in SLURM's queue."""
    last = file.stat().st_mtime
    for _, row in read_jsonl(file):
        if isinstance(root := row.get("root"), str) and isinstance(name := row.get("run"), str):
            run = RunDir(Path(root) / "training_runs" / name)
            with suppress(OSError):
                if run.path.is_dir():
                    state = run.observed_state()
                    is_used = state.is_live or state.state == REQUEUED
                    last = now if is_used else max(last, run.status_file.stat().st_mtime)
    return last
