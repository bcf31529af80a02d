"""The box's end of a copy and of ``grpo-tui sync``: sends what is asked for, or takes files into a staging folder.

See :mod:`remote.protocol.copies` for the lines. A copy that was cut leaves a hidden folder beside its place, from which
the next one continues.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from grpo_train.run_dir import Checkpoint, RunDir, open_run, sha256
from grpo_train.run_dir.clock import Clock
from grpo_train.run_dir.code import Code
from grpo_train.run_dir.evaluations import list_evaluations
from grpo_train.run_dir.files import open_lock, read_json, remove_tree
from grpo_train.run_dir.manifest import MANIFEST, STEP_NAME
from grpo_train.run_dir.root import make_like
from remote.agent import code as codes
from remote.agent.box import BoxContext
from remote.protocol import ProtocolError, RemoteError
from remote.protocol.copies import (
    BUNDLE,
    CLONE,
    LOCK,
    PATCH,
    PIPE_BYTES,
    SILENCE_S,
    WORKING_S,
    CopyInterrupted,
    CopyStream,
    Item,
    check_room,
    item_of,
    list_tree,
    put_begun,
    put_in_place,
    put_items,
    receive_files,
    remove_others,
    send_files,
    staging_of,
    take_begun,
    take_items,
    widen,
)

WAIT_S = SILENCE_S + 5
"""An agent whose connection was lost notices within SILENCE_S, and then writes what had arrived."""
LOOK_S = 0.2
"""Between two attempts: the system waits for a lock without a time limit only."""


@contextmanager
def staging_alone(wire: CopyStream, staging: Path, make: Callable[[], None], what: str, clock: Clock) -> Iterator[None]:
    """Make the folder and keep other copies out of it.

    A copy whose connection was lost is often still held by an agent that does not know it yet; the copy that continues
    it waits for that one, and says to the other end that it is alive. Raises RemoteError ``busy``, in which ``what``
    names the copy, where another one stays at work; CopyInterrupted; OSError.
    """
    until = clock.monotonic() + WAIT_S
    while (lock := _take(staging, make)) is None:
        if clock.monotonic() > until:
            raise RemoteError("busy", f"another {what} is at work", "wait until it has ended")
        clock.sleep(LOOK_S)
        wire.working()
    try:
        yield
    finally:
        os.close(lock)


def _take(staging: Path, make: Callable[[], None]) -> int | None:
    """Descriptor of the folder's lock; None where another process has it, or removed the folder meanwhile."""
    import fcntl

    make()
    try:
        lock = open_lock(staging / LOCK)
    except FileNotFoundError:
        return None
    is_ours = False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_ours = os.path.samestat(os.fstat(lock), os.stat(staging / LOCK))
    except (BlockingIOError, FileNotFoundError):
        pass
    finally:
        if not is_ours:
            os.close(lock)
    return lock if is_ours else None


MAX_PATCH = 64 << 20


def take_code(wire: CopyStream, box: BoxContext) -> None:
    """Take commits and changes from the client, or pull. Raises RemoteError."""
    if box.settings.readonly:
        message = "'sync' is refused: this agent was started with --readonly"
        raise RemoteError("read_only", message, "leave out --readonly")
    if box.settings.code == CLONE:
        with _alive(wire, box.clock):
            pulled = codes.pull(box)
        wire.put(path=str(box.repo), **pulled.to_json())
        return
    with _alive(wire, box.clock):
        place, known = codes.require_sync(box), codes.known_commits()
    wire.put(known=known)
    code = Code.from_json(wire.take())
    if code is None:
        raise ProtocolError("a malformed commit")
    items = take_items(wire)
    if any(item.path not in (BUNDLE, PATCH) or item.link for item in items):
        raise ProtocolError("an unexpected file in a sync")
    if any(item.path == PATCH and item.size > MAX_PATCH for item in items):
        raise RemoteError("too_large", f"the changes are larger than {MAX_PATCH >> 20} MiB", "commit them")
    staging = codes.folder() / "incoming" / code.folder

    def make() -> None:
        staging.mkdir(mode=0o700, parents=True, exist_ok=True)

    with staging_alone(wire, staging, make, "sync of this commit", box.clock):
        check_room(staging, items)
        remove_others(staging, items)
        put_begun(wire, staging, items)
        receive_files(wire, staging, items, lambda item, count: None)
        names = {item.path for item in items}
        bundle, patch = (staging / name if name in names else None for name in (BUNDLE, PATCH))
        if patch is not None and sha256(patch) != code.patch:
            raise ProtocolError("the changes are not the ones that were announced")
        with _alive(wire, box.clock):
            needs_setup = codes.accept(place, code, bundle, patch)
        remove_tree(staging)
    wire.put(path=str(place), needs_setup=needs_setup)


@contextmanager
def _alive(wire: CopyStream, clock: Clock) -> Iterator[None]:
    """Say that this end is alive while git works."""
    done = threading.Event()

    def say() -> None:
        with suppress(CopyInterrupted):  # the next line finds that out, too
            while not clock.wait(done, WORKING_S):
                wire.working()

    thread = threading.Thread(target=say, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


NAMED = 20
"""Paths that are left out and named; the others are counted."""


def serve(box: BoxContext, source: int, sink: int, as_error: Callable[[Exception, BoxContext], RemoteError]) -> None:
    """Answer one request of a copy. Its failure is its last line."""
    for pipe in (source, sink):
        widen(pipe)
    clock = box.clock
    wire = CopyStream(lambda seconds: _receive(source, seconds, clock), lambda data: _send(sink, data), clock)
    try:
        request = wire.take()
        if request.get("op") == "get":
            _give(wire, box, str(request.get("what", "")), str(request.get("steps", "latest")))
        elif request.get("op") == "put":
            _take_put(wire, box, str(request.get("to", "")))
        elif request.get("op") == "code":
            take_code(wire, box)
        else:
            raise RemoteError("bad_request", f"unknown copy {request.get('op')!r}")
        wire.flush()
    except CopyInterrupted:
        return
    except Exception as error:
        malformed = RemoteError("bad_request", str(error)) if isinstance(error, ProtocolError) else None
        try:
            wire.put(error=(malformed or as_error(error, box)).to_json())
            wire.flush()
        except CopyInterrupted:
            return


def _ignore(item: Item, count: int) -> None:
    """The progress of a copy is shown on the other end."""


def _receive(source: int, seconds: float, clock: Clock) -> bytes | None:
    return os.read(source, PIPE_BYTES) if clock.select([source], seconds) else None


def _send(sink: int, data: bytes) -> None:
    view = memoryview(data)
    try:
        while view:
            view = view[os.write(sink, view) :]
    except OSError as error:
        raise CopyInterrupted(str(error)) from error


# ---------------------------------------------------------------------------------------------------------- giving


@dataclass
class _Given:
    """What a get copies."""

    name: str
    parts: list[str] = field(default_factory=list)
    """Folders (or the one file) that are put in place together, relative to where the copy goes; the run comes last."""
    items: list[tuple[Item, Path]] = field(default_factory=list)
    hashes: dict[str, str] = field(default_factory=dict)
    """SHA-256 of files that a manifest names, by path."""
    left_out: list[str] = field(default_factory=list)

    def add_tree(
        self, part: str, folder: Path, *, hidden: bool = True, keep: Callable[[str], bool] | None = None
    ) -> None:
        items, left_out = list_tree(folder, hidden=hidden)
        wanted = [item for item in items if keep is None or keep(item.path)]
        self.items += [(replace(item, path=f"{part}/{item.path}"), folder / item.path) for item in wanted]
        self.left_out += [f"{part}/{path}" for path in left_out]

    def add_hashes(self, part: str, checkpoint: Path, below: str = "") -> None:
        """Take the hashes of a checkpoint's files from its manifest, of those ``below`` one of its folders."""
        files = (read_json(checkpoint / MANIFEST, finite=True) or {}).get("files")
        for name, facts in files.items() if isinstance(files, dict) else ():
            if name.startswith(below) and isinstance(facts, dict) and isinstance(facts.get("sha256"), str):
                self.hashes[f"{part}/{name.removeprefix(below)}"] = facts["sha256"]


def _give(wire: CopyStream, box: BoxContext, what: str, steps: str) -> None:
    given = find(box.root, what, steps)
    more = len(given.left_out) - NAMED
    named = given.left_out[:NAMED] + ([f"and {more} more"] if more > 0 else [])
    wire.put(name=given.name, parts=given.parts, left_out=named)
    put_items(wire, [item for item, _ in given.items])
    begun = take_begun(wire)
    send_files(wire, given.items, begun, _ignore, given.hashes)


def find(root: Path, what: str, steps: str) -> _Given:
    """What a name means: ``RUN``, ``RUN:STEP`` (its weights), or a path below the root, which has a ``/``.

    Raises UserError for what is not there.
    """
    if "/" in what.strip("/"):
        return _find_path(root, what)
    name, _, step = what.strip("/").partition(":")
    run = open_run(root, name)
    if step:
        checkpoint = run.checkpoint(step, hint=f"get {name}:{{step}}")
        part = f"{run.name}_step_{checkpoint.step}"
        given = _Given(part, [part])
        given.add_tree(part, checkpoint.path / "model")
        given.add_hashes(part, checkpoint.path, "model/")
        return given
    return _find_run(root, run, steps)


def _find_path(root: Path, what: str) -> _Given:
    path = Path(os.path.normpath(root / what))
    if not path.is_relative_to(root) or path == root:
        raise RemoteError("bad_request", f"{what} is not below the root {root}")
    given = _Given(path.name, [path.name])
    if path.is_dir():
        given.add_tree(path.name, path)
    elif (item := item_of(path, path.name)) is not None and not item.link:
        given.items = [(item, path)]
    else:
        raise RemoteError("no_file", f"{path} does not exist, or is not a file or folder")
    return given


def _find_run(root: Path, run: RunDir, steps: str) -> _Given:
    given = _Given(run.name)
    for row in list_evaluations(root, run.name):
        part = f"eval_runs/{row['name']}"
        given.parts.append(part)
        given.add_tree(part, root / part, hidden=False)
    part = f"training_runs/{run.name}"
    given.parts.append(part)
    taken = {checkpoint.path.name for checkpoint in _steps(run, steps)}
    links = {link.name: os.readlink(link) for link in run.training_state.glob("step_*") if link.is_symlink()}

    def keep(path: str) -> bool:
        folder, _, rest = path.partition("/")
        step = rest.partition("/")[0]
        if folder != "training_state" or not step.startswith("step_"):
            return True
        return step in taken if STEP_NAME.fullmatch(step) else links.get(step) in taken

    given.add_tree(part, run.path, hidden=False, keep=keep)
    for step in taken:
        given.add_hashes(f"{part}/training_state/{step}", run.training_state / step)
    return given


def _steps(run: RunDir, steps: str) -> Iterable[Checkpoint]:
    """The complete checkpoints that ``all``, ``none``, ``latest``, ``final`` or ``10,20`` name."""
    complete = [checkpoint for checkpoint in run.checkpoints() if not checkpoint.problem]
    if steps == "all":
        return complete
    if steps == "none" or (steps == "latest" and not complete):
        return []
    return [run.checkpoint(step.strip()) for step in steps.split(",")]


# ---------------------------------------------------------------------------------------------------------- taking


def _take_put(wire: CopyStream, box: BoxContext, to: str) -> None:
    if box.settings.readonly:
        message = "'put' is refused: this agent was started with --readonly"
        raise RemoteError("read_only", message, "leave out --readonly")
    items = take_items(wire)
    place = _place(box.root, to)
    if os.path.lexists(place):
        _show(wire, place, items)
        return
    staging = staging_of(place)

    def make() -> None:
        for parent in reversed(place.parents):
            if parent.is_relative_to(box.root) and parent != box.root:
                make_like(parent, parent.parent)
        make_like(staging, place.parent)

    with staging_alone(wire, staging, make, f"copy to {place}", box.clock):
        if os.path.lexists(place):  # the copy that was waited for put it there
            remove_tree(staging)
            _show(wire, place, items)
            return
        wire.put(path=str(place), exists=False)
        check_room(staging, items)
        remove_others(staging, items)
        put_begun(wire, staging, items)
        receive_files(wire, staging, items, _ignore)
        put_in_place(staging, [place.name], place.parent)
    wire.put(path=str(place))


def _show(wire: CopyStream, place: Path, items: list[Item]) -> None:
    """Say what is at a place that exists, for the client to compare."""
    wire.put(path=str(place), exists=True)
    put_begun(wire, place.parent, items)


def _place(root: Path, to: str) -> Path:
    """Where a put goes. Raises RemoteError for a place that is not below the root."""
    place = Path(os.path.normpath(root / Path(to).expanduser()))
    inside = place.is_relative_to(root) and place != root
    if inside:  # a link below the root may lead elsewhere
        there = next(parent for parent in place.parents if parent.exists())
        inside = there.resolve().is_relative_to(root.resolve())
    if not inside or place.name.startswith("."):
        raise RemoteError("bad_request", f"{place} is not a place below the root {root}")
    return place
