"""The app on a laptop like one with Windows: ``python -m tests.support.windows_laptop BOXES_FILE``.

Modules that only POSIX has cannot be imported, and functions and constants that Windows lacks are gone. Prints one JSON
object: what ``--demo`` says, and the screen of this machine as a box, after one with the runs of the first box.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import sys
from types import SimpleNamespace

BLOCKED = ("fcntl", "pty", "tty", "pwd", "grp", "resource", "termios", "syslog")
GONE = {
    os: (
        "chown", "fchmod", "fork", "forkpty", "geteuid", "getgid", "getloadavg", "getpgid", "getuid", "killpg",
        "mkfifo", "nice", "openpty", "setsid", "sysconf", "uname", "O_CLOEXEC", "O_NOFOLLOW", "O_NONBLOCK",
    ),
    select: ("epoll", "poll"),
    signal: ("SIGHUP", "SIGKILL", "SIGQUIT", "SIGUSR1", "SIGWINCH"),
}  # fmt: skip


def become_windows() -> None:
    """Take away what Windows does not have; libraries that know Windows are imported before."""
    for name in BLOCKED:
        sys.modules[name] = None  # type: ignore[assignment]
    import paramiko
    import platformdirs.unix
    import textual.app

    assert paramiko, (platformdirs, textual)
    for module, names in GONE.items():
        for name in names:
            if hasattr(module, name):
                delattr(module, name)
    from grpo_tui.dialogs import demo
    from remote.transports import choice

    choice.sys = demo.sys = SimpleNamespace(platform="win32", prefix=sys.prefix, executable=sys.executable)  # type: ignore


async def shown(boxes_file: str) -> dict[str, str]:
    """The screens."""
    from grpo_tui import cli
    from grpo_tui.app import GrpoApp
    from grpo_tui.dialogs import demo
    from tests.support.patience import eventually

    arguments = cli.app_parser().parse_args(["--boxes", boxes_file, "--fresh"])
    app = GrpoApp(cli.app_options(arguments))
    found = {"demo": demo.engine_problem()}
    async with app.run_test(size=(120, 40)) as pilot:

        async def until(*texts: str) -> str:
            screen = ""

            def shown() -> bool:
                nonlocal screen
                screen = "\n".join(strip.text.rstrip() for strip in app.screen._compositor.render_strips())
                return "internal error" in screen or all(text in screen for text in texts)

            try:
                await asyncio.to_thread(eventually, lambda: app.call_from_thread(shown))
            except AssertionError:
                raise AssertionError(f"not on the screen: {texts}\n{screen}") from None
            assert "internal error" not in screen, screen
            return screen

        await until("unknown host key", "SHA256:")
        await pilot.press("right", "enter")
        await until("run_here")
        for key in "2345671":
            await pilot.press(key)
            await until(f"▸{key}" if not app.messages.entries else "")
        await pilot.press("b")
        await until(
            "runs on other boxes continue", "now", "Windows has no tmux: use grpo-tui inside WSL, or another box"
        )
        await pilot.press("down", "enter")
        found["local"] = await until("grpo-tui │ local", "inside WSL")
    return found


if __name__ == "__main__":
    become_windows()
    print(json.dumps(asyncio.run(shown(sys.argv[1]))))
