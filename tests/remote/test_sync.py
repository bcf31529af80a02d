"""Code on a box: sync over each transport, a working tree for each run, resumes where the code differs, pulls."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from grpo_train.run_dir import write_manifest
from grpo_train.run_dir.errors import UserError
from remote.agent import code as codes
from remote.base import BoxesError
from remote.boxes import Box, parse_boxes
from remote.code import Synced, find_checkout, sync, write_bundle
from remote.copying import Copier
from tests.remote.conftest import FAKE_ENGINE
from tests.remote.test_shell import Shell
from tests.support.agent import agents_here, eventually
from tests.support.sshd import Sshd

ENGINE = f"""#!/bin/sh
cd /
[ -z "$PYTHONPATH" ] || /usr/bin/python3 -c 'import grpo_train; print(grpo_train.WHAT)' >> "$LOCALFS_ROOT/what"
unset PYTHONPATH
exec {FAKE_ENGINE} "$@"
"""

__all__ = ["agents_here"]
pytestmark = pytest.mark.usefixtures("agents_here")


class Clone:
    """A checkout of grpo-tui, as far as a sync looks at it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "scripts").mkdir(parents=True)
        self.git("init", "--quiet", "--initial-branch=main")
        self.write("scripts/setup.sh", "echo set up")
        self.write("pyproject.toml", "")
        self.write(".gitignore", ".venv/\n")
        self.commit("one")

    def git(self, *words: str) -> str:
        named = ["-c", "user.name=A", "-c", "user.email=a@b.c", "-c", "protocol.file.allow=always"]
        done = subprocess.run(["git", *named, *words], cwd=self.folder, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def write(self, name: str, text: str | bytes) -> None:
        file = self.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text if isinstance(text, bytes) else text.encode())

    def says(self, what: str) -> None:
        self.write("grpo_train/__init__.py", f"WHAT = {what!r}\n")

    def commit(self, what: str) -> str:
        """Commit code that says ``what``; returns the commit."""
        self.says(what)
        self.git("add", "--all")
        self.git("commit", "--quiet", "-m", f"Say {what}")
        return self.git("rev-parse", "HEAD")


def engine_that_says(folder: Path) -> Path:
    """An engine that appends what its code says to ``what`` in the root."""
    engine = folder / "engine"
    engine.write_text(ENGINE)
    engine.chmod(0o755)
    return engine


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clone:
    made = Clone(tmp_path / "clone")
    monkeypatch.chdir(made.folder)
    return made


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home directory of the local box."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


@pytest.fixture
def shell(box: Box, home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(tmp_path, dataclasses.replace(box, engine=[str(engine_that_says(tmp_path))], code="sync"), capsys)


def _launched(shell: Shell, root: Path, name: str) -> dict[str, Any]:
    shell.json("launch", str(shell.config), "--run-name", name)
    return dict(json.loads((root / "training_runs" / name / "launch.json").read_text()))


def _stop(shell: Shell, root: Path, name: str) -> None:
    """Stop a run; it has a checkpoint then."""
    eventually(lambda: shell.json("show", name)["summary"]["state"] == "running")
    shell("stop", name)
    eventually(lambda: shell.json("show", name)["summary"]["state"] == "stopped")
    eventually(lambda: all(row["dead"] for row in shell.json("sessions") if row["name"] == name))
    step = root / "training_runs" / name / "training_state" / "step_1"
    if not step.exists():
        (step / "model").mkdir(parents=True)
        write_manifest(step, step=1)
        step.with_name("step_latest").symlink_to(step.name)


def _said(root: Path) -> list[str]:
    file = root / "what"
    return file.read_text().split() if file.exists() else []


def test_each_run_keeps_its_code(shell: Shell, clone: Clone, root: Path, home: Path) -> None:
    assert shell.json("launch", str(shell.config), code=1)["error"]["code"] == "no_code"
    first = shell.json("sync")
    assert (first["commit"], first["subject"]) == (clone.git("rev-parse", "HEAD"), "Say one")
    assert (first["path"], first["needs_setup"]) == (str(home / ".grpo" / "code"), True)
    assert _launched(shell, root, "a")["code"] == {"commit": first["commit"], "patch": ""}
    clone.commit("two")
    second = shell.json("sync")
    assert 0 < second["size"] < first["size"], "only what is new travels"
    assert shell.json("sync")["size"] == 0
    _launched(shell, root, "b")
    trees = home / ".grpo" / "worktrees"
    eventually(lambda: _said(root) == ["one", "two"])
    assert (trees / first["commit"] / "grpo_train" / "__init__.py").read_text() == "WHAT = 'one'\n"
    assert (home / ".grpo" / "code" / "grpo_train" / "__init__.py").read_text() == "WHAT = 'two'\n"

    _stop(shell, root, "a")
    refused = shell.json("resume", "a", code=1)["error"]
    then, now = first["commit"][:10], second["commit"][:10]
    assert refused["message"] == f"the code of a differs: {then} then, {now} now"
    assert (refused["code"], refused["hint"]) == ("code_differs", "resume it with --code then or --code now")
    shutil.rmtree(trees / first["commit"])  # as a prune does
    shell.json("resume", "a", "--code", "then")
    eventually(lambda: _said(root) == ["one", "two", "one"])
    _stop(shell, root, "a")
    shell.json("resume", "a", "--code", "now")
    eventually(lambda: _said(root)[3:] == ["two"])
    _stop(shell, root, "a")
    shell.json("resume", "a")  # which is its code now
    eventually(lambda: _said(root)[4:] == ["two"])
    launch = json.loads((root / "training_runs" / "a" / "launch.json").read_text())
    assert launch["code"]["commit"] == first["commit"], "the launch is history"


def test_changes_travel_as_a_patch(shell: Shell, clone: Clone, root: Path, home: Path) -> None:
    commit = clone.git("rev-parse", "HEAD")
    clone.says("changed")
    clone.write("grpo_train/new module.py", "X = 1\n")
    clone.write("grpo_train/table.bin", bytes(range(256)) * 9)
    clone.git("rm", "--quiet", "--cached", "pyproject.toml")
    before = (clone.git("status", "--porcelain"), clone.git("count-objects", "-v"), clone.git("ls-files", "--stage"))
    refused = shell.json("sync", code=1)["error"]
    assert refused["code"] == "dirty"
    assert all(name in refused["message"] for name in ("M grpo_train/__init__.py", "new module.py", "--with-changes"))
    synced = shell.json("sync", "--with-changes")
    assert before == (
        clone.git("status", "--porcelain"), clone.git("count-objects", "-v"), clone.git("ls-files", "--stage"),
    )  # fmt: skip
    assert (synced["commit"], len(synced["patch"])) == (commit, 64)
    assert _launched(shell, root, "a")["code"] == {"commit": commit, "patch": synced["patch"]}
    eventually(lambda: _said(root) == ["changed"])
    tree = home / ".grpo" / "worktrees" / f"{commit}-{synced['patch'][:10]}"
    for made in (tree, home / ".grpo" / "code"):
        assert (made / "grpo_train" / "new module.py").read_text() == "X = 1\n"
        assert (made / "grpo_train" / "table.bin").read_bytes() == bytes(range(256)) * 9
    assert "new module.py" in (root / "training_runs" / "a" / f"code-{synced['patch'][:10]}.patch").read_text(
        errors="replace"
    )

    # Another box, with the same disk for runs, that has the commit alone.
    _stop(shell, root, "a")
    os.rename(home / ".grpo", home / "gone")
    clone.git("stash", "--include-untracked", "--quiet")
    shell.json("sync")
    assert f"{commit[:10]} with changes {synced['patch'][:10]} then, {commit[:10]} now" in str(
        shell.json("resume", "a", code=1)
    )
    shell.json("resume", "a", "--code", "then")
    eventually(lambda: _said(root) == ["changed", "changed"])
    _stop(shell, root, "a")
    clone.says("other changes")
    other = shell.json("sync", "--with-changes")["patch"]
    shell.json("resume", "a", "--code", "now")
    eventually(lambda: _said(root)[2:] == ["other", "changes"])
    _stop(shell, root, "a")
    kept = {file.name for file in (root / "training_runs" / "a").glob("*.patch")}
    assert kept == {f"code-{patch[:10]}.patch" for patch in (synced["patch"], other)}, "the first one stays"
    clone.git("checkout", "--quiet", ".")
    shell.json("sync", "--with-changes")  # a clean tree has none
    _launched(shell, root, "b")
    eventually(lambda: _said(root)[4:] == ["one"])


def test_changes_with_a_token_stay_here(shell: Shell, clone: Clone, home: Path) -> None:
    clone.write("config/mine.yaml", f"task: {{path: hf_{'q' * 34}}}\n")
    refused = shell.json("sync", "--with-changes", code=2)["error"]
    assert (refused["code"], "config/mine.yaml: this is a Hugging Face token" in refused["message"]) == ("secret", True)
    assert not (home / ".grpo" / "code").exists()
    clone.write("config/mine.yaml", "task: {path: x}\napi_key = find_key(token=None)\n")
    shell.json("sync", "--with-changes")


def test_code_that_is_not_there(shell: Shell, clone: Clone, root: Path, home: Path) -> None:
    clone.git("checkout", "--quiet", "-b", "aside")
    aside = clone.commit("aside")
    shell.json("sync")
    _launched(shell, root, "a")
    _stop(shell, root, "a")
    os.rename(home / ".grpo", home / "gone")
    clone.git("checkout", "--quiet", "main")
    shell.json("sync")
    refused = shell.json("resume", "a", "--code", "then", code=1)["error"]
    assert (refused["code"], refused["message"]) == ("no_code", f"commit {aside} is not on this box")
    os.remove(home / ".grpo" / "code.json")
    assert shell.json("resume", "a", "--code", "now", code=1)["error"]["message"] == "nothing was synced to this box"


HOSTILE = """
[user]
    name = A
    email = a@b.c
    signingKey = {key}
[gpg]
    format = ssh
[log]
    showSignature = true
[i18n]
    logOutputEncoding = UTF-16
[diff]
    context = 0
    external = false
    submodule = log
    noprefix = true
    srcPrefix = x/
    ignoreSubmodules = all
    renames = copies
    relative = true
    suppressBlankEmpty = true
[status]
    renames = copies
    short = true
    branch = true
[color]
    ui = always
[core]
    pager = false
    safecrlf = true
    hooksPath = {hooks}
    eol = crlf
[apply]
    whitespace = error-all
    ignoreWhitespace = change
[safe]
    bareRepository = explicit
[submodule]
    recurse = true
[fetch]
    recurseSubmodules = true
    prune = true
[protocol]
    allow = never
[init]
    defaultBranch = x
[filter "lfs"]
    process = false
    smudge = false
    required = true
[alias]
    status = log
"""


def test_the_users_git_configuration_changes_nothing(shell: Shell, clone: Clone, home: Path, tmp_path: Path) -> None:
    """On both machines: here, they have one home."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "key")], check=True)
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    for hook in ("post-checkout", "post-index-change", "reference-transaction"):
        (hooks / hook).write_text("#!/bin/sh\nexit 1\n")
        (hooks / hook).chmod(0o755)
    key = tmp_path / "key"
    (home / ".gitconfig").write_text(HOSTILE.format(key=key, hooks=hooks))
    text = "".join(f"line {number}  \n\n" for number in range(40))
    clone.write("grpo_train/long.py", text)
    clone.write("grpo_train/old name é.py", text * 2)
    quiet = ["-c", "core.hooksPath=/dev/null", "-c", "core.safecrlf=false"]
    clone.git(*quiet, "add", "--all")
    clone.git(*quiet, "commit", "--quiet", "-S", "-m", "Ünsigned? no")
    first = shell.json("sync")
    assert (first["commit"], first["subject"]) == (clone.git("rev-parse", "HEAD"), "Ünsigned? no")
    clone.write("grpo_train/long.py", text.replace("line 20", "line twenty"))
    clone.git(*quiet, "mv", "grpo_train/old name é.py", "grpo_train/new name.py")
    clone.write("crlf.txt", "a\r\nb\n")
    for _ in range(2):  # the second is not refused for what the first one changed
        shell.json("sync", "--with-changes")
    for name in ("grpo_train/long.py", "grpo_train/new name.py", "crlf.txt"):
        assert (home / ".grpo/code" / name).read_bytes() == (clone.folder / name).read_bytes()
    assert not (home / ".grpo/code/grpo_train/old name é.py").exists()


def _nested(clone: Clone, home: Path) -> str:
    (clone.folder / "tools/x").mkdir(parents=True)
    subprocess.run(["git", "init", "--quiet", str(clone.folder / "tools/x")], check=True)
    os.chdir(clone.folder / "tools/x")
    return f"around it, {clone.folder}/tools/x, lacks grpo_train and scripts/setup.sh; run it in your clone"


def _no_head(clone: Clone, home: Path) -> str:
    (clone.folder / ".git/HEAD").write_text("")
    return "fatal: not a git repository"


def _of_another(clone: Clone, home: Path) -> str:
    subprocess.run(["chown", "-R", "nobody", str(clone.folder)], check=True)
    return "fatal: detected dubious ownership in repository"


def _broken_configuration(clone: Clone, home: Path) -> str:
    (home / ".gitconfig").write_text("[user\n")
    return "fatal: bad config line 1 in file"


def _bare(clone: Clone, home: Path) -> str:
    subprocess.run(["git", "clone", "--quiet", "--bare", str(clone.folder), str(clone.folder / "tools/b")], check=True)
    os.chdir(clone.folder / "tools/b")
    return "fatal: this operation must be run in a work tree"


@pytest.mark.parametrize("change", [_nested, _no_head, _of_another, _broken_configuration, _bare])
def test_no_other_checkout_takes_its_place(
    change: Callable[[Clone, Path], str], shell: Shell, clone: Clone, home: Path, tmp_path: Path
) -> None:
    """What git refuses is said in its words, also where another repository is around it, or runs this program."""
    if change is _of_another and os.geteuid() != 0:
        pytest.skip("only root gives files away")
    outer = Clone(tmp_path / "outer")
    clone.folder.rename(outer.folder / "inner")
    clone.folder = outer.folder / "inner"
    os.chdir(clone.folder)
    words = change(clone, home)
    code, out, errors = shell("sync")
    assert (code != 0, out, words in errors) == (True, "", True), errors
    assert not (home / ".grpo/code").exists()


def test_git_on_the_box_speaks_for_itself(box: Box, clone: Clone, home: Path) -> None:
    _bring(box)
    store = home / ".grpo/code.git/config"
    store.write_text("[core\n")
    with pytest.raises(UserError, match="fatal: bad config line 1 in file") as caught:
        _bring(box)
    assert "move it away" not in str(caught.value)


def test_what_does_not_travel_is_named_before(shell: Shell, clone: Clone, home: Path, tmp_path: Path) -> None:
    other = Clone(tmp_path / "other")
    clone.git("submodule", "--quiet", "add", str(other.folder), "third/party")
    clone.write(".gitattributes", "*.bin filter=lfs\n")
    clone.write("a.bin", "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n")
    clone.write("b.bin", "the file itself")
    clone.commit("with a submodule")
    code, _, errors = shell("sync")
    submodule, pointer = "third/party/ (a git repository of its own)", "a.bin (Git LFS: only its pointer travels)"
    assert (code, errors.count("left out: ")) == (3, 2)
    assert errors.index(submodule) < errors.index(pointer)
    assert shell.json("sync", code=3)["left_out"] == [submodule, pointer]
    clone.write("third/party/scripts/setup.sh", "edited")
    assert "third/party" in shell.json("sync", code=1)["error"]["message"]
    nested = Clone(clone.folder / "tools/nested")
    for what in ("more", "still more"):
        synced = shell.json("sync", "--with-changes", code=3)
        assert synced["left_out"] == [submodule, "tools/nested/ (a git repository of its own)", pointer]
        nested.commit(what)
    assert (home / ".grpo/code/b.bin").read_text() == "the file itself"


@pytest.mark.parametrize("transport", ["openssh", "paramiko"])
def test_code_comes_over_each_transport(transport: str, sshd: Sshd, root: Path, clone: Clone) -> None:
    place = root / "checkout"
    box = Box(
        f"h200-{transport}", host="127.0.0.1", port=sshd.port, user=sshd.user, key=str(sshd.user_key),
        transport=transport, root=str(root), repo=str(place), code="sync",
    )  # fmt: skip
    with Copier(box, ask_host_key=lambda question: True) as copier:
        synced = sync(copier, with_changes=False)
    assert (synced.path, synced.commit) == (str(place), clone.git("rev-parse", "HEAD"))
    assert (place / "grpo_train" / "__init__.py").read_text() == "WHAT = 'one'\n"


def _bring(box: Box, **options: Any) -> Synced:
    with Copier(box, **options) as copier:
        return sync(copier, with_changes=False)


def _edit_on_the_box(clone: Clone, place: Path) -> None:
    (place / "mine.yaml").write_text("x: 1\n")


def _clone_on_the_box(clone: Clone, place: Path) -> None:
    subprocess.run(["rm", "-r", str(place)], check=True)
    subprocess.run(["git", "clone", "--quiet", str(clone.folder), str(place)], check=True)


def _dirty(clone: Clone, place: Path) -> None:
    clone.says("dirty")


def _shallow(clone: Clone, place: Path) -> None:
    (clone.folder / ".git" / "shallow").write_text(clone.git("rev-parse", "HEAD") + "\n")


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        (_edit_on_the_box, "edited", "/.grpo/code was edited on this box: mine.yaml; on the box, in "),
        (_clone_on_the_box, "exists", "/.grpo/code exists, and grpo-tui sync did not make it"),
        (_dirty, "dirty", "has changes that are not committed: M grpo_train/__init__.py; commit them"),
        (_shallow, "no_checkout", "is a shallow clone; complete it with  git fetch --unshallow"),
    ],
)
def test_what_is_not_synced(
    change: Callable[[Clone, Path], None], code: str, words: str, box: Box, clone: Clone, home: Path
) -> None:
    _bring(box)
    place = home / ".grpo" / "code"
    clone.commit("two")
    change(clone, place)
    with pytest.raises(UserError) as caught:
        _bring(box)
    assert (caught.value.code, words in str(caught.value)) == (code, True), caught.value
    if place.joinpath(".git").is_file():
        assert (place / "grpo_train" / "__init__.py").read_text() == "WHAT = 'one'\n"


def test_boxes_that_take_no_sync(box: Box, clone: Clone, home: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"'sync' is refused: this agent was started with --readonly"):
        _bring(box, readonly=True)
    with pytest.raises(UserError, match=r"trains with the checkout /srv/repo .*; set 'code: sync'"):
        _bring(dataclasses.replace(box, repo="/srv/repo"))
    with pytest.raises(BoxesError, match=r":4: 'code' must be sync .* not 'rsync'"):
        parse_boxes("boxes:\n  - name: a\n    host: h\n    code: rsync\n")
    with pytest.raises(UserError, match="is not in a checkout of grpo-tui"):
        find_checkout(tmp_path)
    os.remove(clone.folder / "scripts" / "setup.sh")
    with pytest.raises(UserError, match="is not in a checkout of grpo-tui"):
        find_checkout(clone.folder)


def test_a_clone_is_pulled(box: Box, clone: Clone, home: Path, tmp_path: Path) -> None:
    there = tmp_path / "there"
    box = dataclasses.replace(box, code="clone", repo=str(there))
    with pytest.raises(UserError, match="there does not exist; 'code: clone' needs 'repo'"):
        _bring(box)
    subprocess.run(["git", "clone", "--quiet", str(clone.folder), str(there)], check=True)
    commit = clone.commit("two")
    assert (_bring(box).commit, (there / "grpo_train" / "__init__.py").read_text()) == (commit, "WHAT = 'two'\n")
    clone.git("commit", "--quiet", "--amend", "-m", "Another")
    with pytest.raises(UserError, match="Not possible to fast-forward, aborting"):
        _bring(box)


def test_working_trees_of_ended_runs_are_removed(shell: Shell, clone: Clone, root: Path, home: Path) -> None:
    shell.json("sync")
    _launched(shell, root, "a")
    old = clone.git("rev-parse", "HEAD")
    clone.commit("two")
    shell.json("sync")
    trees, later = home / ".grpo" / "worktrees", time.time() + 15 * 86_400
    eventually(lambda: shell.json("show", "a")["summary"]["state"] == "running")
    assert codes.prune(later) == [], "its run is live"
    _stop(shell, root, "a")
    status_file = root / "training_runs" / "a" / "status.json"
    ended = status_file.read_text()
    status_file.write_text(json.dumps({**json.loads(ended), "state": "requeued"}))
    assert codes.prune(later) == [], "its run waits in the queue of SLURM"
    status_file.write_text(ended)
    left = [home / ".grpo" / "patches" / "1a", home / ".grpo" / "incoming" / "2b" / "commits.bundle"]
    for file in left:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    assert codes.prune(time.time() + 13 * 86_400) == []
    assert all(file.exists() for file in left)
    assert codes.prune(later) == [old]
    assert not list(trees.glob(f"{old}*"))
    assert not any(file.exists() for file in left)
    assert codes.prune(later + 9e9) == [], "the code that was synced last stays"
    shell.json("resume", "a", "--code", "then")
    eventually(lambda: _said(root) == ["one", "one"])


def test_a_bundle_has_what_the_box_lacks(clone: Clone, tmp_path: Path) -> None:
    first = clone.git("rev-parse", "HEAD")
    clone.commit("two")
    found, file = find_checkout(clone.folder), tmp_path / "b"
    assert write_bundle(found, ["0" * 40], file)
    whole = file.stat().st_size
    assert write_bundle(found, [first, "0" * 40], file)
    assert file.stat().st_size < whole
    assert not write_bundle(found, [found.commit], file)
