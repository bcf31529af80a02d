"""Resource attacks: each must end within its wall-time limit and leave nothing behind."""

from __future__ import annotations

from tests.sandbox.hostile.program import HONEST, Program

AS_SOLUTION: dict[str, tuple[str, tuple[str, ...]]] = {
    "an endless loop": ("while True: pass", ("timeout",)),
    "an endless loop in the function": ("def f(x):\n    while True: pass", ("timeout",)),
    "a loop that catches everything": (
        "def f(x):\n    while True:\n        try:\n            while True: pass\n        except BaseException: pass",
        ("timeout",),
    ),
    "ignores signals and sleeps": (
        "import signal, time\nfor s in range(1, 65):\n    try: signal.signal(s, signal.SIG_IGN)\n"
        "    except (OSError, ValueError): pass\ntime.sleep(1000)",
        ("timeout",),
    ),
    "stops itself": ("import os, signal, time\nos.kill(os.getpid(), signal.SIGSTOP)\ntime.sleep(1000)", ("timeout",)),
    "9**9**9": ("def f(x): return 9 ** 9 ** 9", ("timeout", "memory")),
    "an endless regular expression": (
        "import re\ndef f(x): return re.match(r'(a+)+$', 'a' * 40 + 'b')",
        ("timeout",),
    ),
    "8 GB at once": ("x = bytearray(8 << 30)", ("memory",)),
    "slow growth": ("x = []\nwhile True: x.append(bytearray(1 << 20))", ("memory", "timeout")),
    "a fork bomb": ("import os\nwhile True: os.fork()", ("exception",)),
    "a fork bomb that catches everything": (
        "import os\nwhile True:\n    try: os.fork()\n    except BaseException: pass",
        ("timeout",),
    ),
    "a thread bomb": (
        "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(1000,)).start()",
        ("exception", "memory", "killed", "timeout"),
    ),
    "a flood of output": (
        "import sys\nwhile True: sys.stdout.write('x' * 65536); sys.stderr.write('x' * 65536)",
        ("timeout",),
    ),
    "a flood of results": ("import os\nwhile True: os.write(4, b'x' * 65536)", ("forged_results", "output_limit")),
    "results byte by byte": ("import os\nwhile True: os.write(4, b'x')", ("forged_results", "timeout", "output_limit")),
    "an endless file": (
        "with open('big', 'wb') as file:\n    while True: file.write(b'x' * (1 << 20))",
        ("exception",),
    ),
    "thousands of files": (
        "import os\ni = 0\nwhile True:\n    os.close(os.open(f'file-{i}', os.O_CREAT | os.O_WRONLY)); i += 1",
        ("timeout", "exception"),
    ),
    "a disk full of files": (
        "i = 0\nwhile True:\n    with open(f'file-{i}', 'wb') as file: file.write(b'x' * (1 << 20))\n    i += 1",
        ("timeout", "exception"),
    ),
    "thousands of nested directories": (
        "import os\nwhile True:\n    os.mkdir('d'); os.chdir('d')",
        ("timeout", "exception"),
    ),
    "unreadable directories": (
        "import os\nfor i in range(20):\n    os.mkdir(f'{i}', 0o300)\n    open(f'{i}/file', 'w').close()\n"
        "    os.mkdir(f'{i}/none', 0)\nos.mkdir('zero', 0)\n1 / 0",
        ("exception",),
    ),
    "removes its own directory": (
        "import os, pathlib\nhere = os.getcwd()\nos.chdir('/')\nos.rmdir(here)\nopen('/tmp/x', 'w')",
        ("exception",),
    ),
    "links that lead out": (
        "import os\nfor i, to in enumerate(('/', '/etc/passwd', '..', os.getcwd())):\n"
        "    os.symlink(to, f'link-{i}')\n1 / 0",
        ("exception",),
    ),
    "every descriptor": ("import os\nfds = []\nwhile True: fds.append(os.open('.', os.O_RDONLY))", ("exception",)),
    "endless recursion": ("def f(x): return f(x)", ("exception",)),
    "endless recursion without a limit": (
        "import sys\nsys.setrecursionlimit(1 << 30)\ndef f(x): return f(x)",
        ("exception", "memory", "killed", "timeout"),
    ),
    "C recursion without a limit": (
        "import sys\nsys.setrecursionlimit(1 << 30)\na = []\nfor _ in range(1_000_000): a = [a]\nrepr(a)",
        ("exception", "memory", "killed", "timeout"),
    ),
    "deeply nested source": ("x = " + "-" * 200_000 + "1", ("syntax_error", "memory", "killed", "timeout")),
    "source with many brackets": ("x = " + "(" * 100_000, ("syntax_error", "memory", "killed")),
    "source with a huge constant string": ("x = " + "'a' * 10 ** 9 + " * 50 + "'a'", ("memory", "timeout")),
    "an endless constant": ("x = 9 ** 9 ** 9 ** 9", ("timeout", "memory")),
    "an endless destructor": (
        "class D:\n    def __del__(self):\n        while True: pass\ndef f(x):\n    D()\n    return 0",
        ("timeout",),
    ),
    "an endless value": (
        "class L(list): pass\ndef g():\n    while True: pass\n    yield\ndef f(x): return g()",
        ("timeout",),
    ),
    "closes everything and sleeps": (
        "import os, time\nos.closerange(0, 64)\ntime.sleep(1000)",
        ("timeout",),
    ),
}  # fmt: skip

AS_SCRIPT: dict[str, tuple[str, tuple[str, ...]]] = {
    "script: a flood of output": ("while True: print('x' * 10000)", ("output_limit",)),
    "script: a flood of errors": ("import sys\nwhile True: sys.stderr.write('x' * 10000)", ("output_limit",)),
    "script: an endless exit handler": (
        "import atexit\n@atexit.register\ndef _():\n    while True: pass",
        ("timeout",),
    ),
    "script: an endless thread": (
        "import threading, time\nthreading.Thread(target=time.sleep, args=(1000,)).start()",
        ("timeout",),
    ),
    "script: os._exit after output": ("import os\nprint(1, flush=True)\nos._exit(0)", ("killed",)),
    "script: 8 GB": ("bytearray(8 << 30)", ("memory",)),
    "script: waits for input": ("input(); input()", ("runtime_error",)),
    "script: a broken standard output": ("import sys\nsys.stdout = None\nsys.stderr = 3\n1 / 0", ("runtime_error",)),
    "script: output in the exit handler of a killed one": (
        "import os, atexit\natexit.register(print, 'x')\nos.kill(os.getpid(), 9)",
        ("killed", "ok"),
    ),
    "script: writes into its input": (
        "import os\nfor fd in (0, os.open('/proc/self/fd/0', os.O_RDWR)):\n"
        "    try: os.write(fd, b'x')\n    except OSError: pass\n    else: os._exit(1)",
        ("ok", "runtime_error"),
    ),
    "script: stays in the pipe": (
        "import os, time\nos.write(1, b'x' * 100)\nos.close(1)\nos.close(2)\ntime.sleep(1000)",
        ("timeout",),
    ),
}

PROGRAMS = (
    *(Program(name, source, reasons, kind="resource") for name, (source, reasons) in AS_SOLUTION.items()),
    *(Program(name, source, statuses=statuses, kind="resource") for name, (source, statuses) in AS_SCRIPT.items()),
    Program(
        "takes its own records back",
        "import os\nfd = os.open('/proc/self/fd/4', os.O_RDONLY | os.O_NONBLOCK)\nos.read(fd, 1 << 16)",
        ("exception",),
        kind="resource",
    ),
    Program(
        "an endless thread",
        "import threading\ndef spin():\n    while True: pass\nthreading.Thread(target=spin).start()\n" + HONEST,
        ("ok",),
        kind="resource",
    ),
    Program(
        "a thread that keeps writing results",
        "import threading, os\ndef flood():\n    import time\n    time.sleep(0.05)\n    while True: os.write(4, b'x')\n"
        "threading.Thread(target=flood, daemon=True).start()\nimport time\ntime.sleep(0.2)\n" + HONEST,
        ("forged_results", "output_limit"),
        kind="resource",
    ),
)

REPEATED = frozenset({
    # The CPU limit, which ends "an endless loop in the function".
    "an endless loop", "a loop that catches everything", "9**9**9", "an endless regular expression",
    "a fork bomb that catches everything", "a flood of output", "results byte by byte", "an endless constant",
    "endless recursion without a limit", "an endless destructor", "an endless value", "script: an endless exit handler",
    # The wall-time limit, which ends "ignores signals and sleeps" and "script: stays in the pipe".
    "stops itself", "closes everything and sleeps", "script: an endless thread",
    # Memory, which ends "8 GB at once", and a stack, which ends "endless recursion".
    "slow growth", "source with a huge constant string", "C recursion without a limit",
    # Files, which end "thousands of files" and "a disk full of files".
    "thousands of nested directories",
})  # fmt: skip
"""Attacks on a limit that the named ones attack, too: they run in tests/soak only."""
