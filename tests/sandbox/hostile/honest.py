"""Honest programs, which must work in the sandbox."""

from __future__ import annotations

from tests.sandbox.hostile.program import HONEST, Program

SOLUTIONS = {
    "plain": HONEST,
    "common imports": "import heapq, re, math, collections, itertools, functools, bisect, string, random, json, copy\n"
    "import datetime, decimal, fractions, statistics, operator, typing, dataclasses, enum, hashlib, uuid, time, zlib\n"
    "import sqlite3, ssl, struct, pickle, tempfile, pathlib, textwrap, unicodedata, asyncio, csv, queue, logging\n"
    "from typing import List\ndef f(x: int) -> int:\n    return sum(heapq.nlargest(2, [x, x]))",
    "recursion to 900": "def g(n):\n    return 0 if n == 0 else 1 + g(n - 1)\n"
    "def f(x):\n    return 2 * x + g(900) - 900",
    "threads": "import threading\ndef f(x):\n    out = []\n"
    "    ts = [threading.Thread(target=out.append, args=(x,)) for _ in range(40)]\n"
    "    [t.start() for t in ts]\n    [t.join() for t in ts]\n    return out[0] + out[1]",
    "a pool of threads": "from concurrent.futures import ThreadPoolExecutor\ndef f(x):\n"
    "    with ThreadPoolExecutor(8) as pool:\n        return sum(pool.map(int, [x, x]))",
    "asyncio": "import asyncio\nasync def g(x):\n    await asyncio.sleep(0.001)\n    return 2 * x\n"
    "def f(x):\n    return asyncio.run(g(x))",
    "files in its directory": "import os, tempfile, shutil\ndef f(x):\n    os.makedirs('a/b', exist_ok=True)\n"
    "    with open('a/b/c.txt', 'w') as o:\n        o.write(str(2 * x))\n    os.rename('a/b/c.txt', 'd.txt')\n"
    "    with tempfile.TemporaryDirectory() as t:\n        open(os.path.join(t, 'y'), 'w').close()\n"
    "    shutil.rmtree('a')\n    return int(open('d.txt').read())",
    "a main block that does not run": HONEST + "if __name__ == '__main__':\n    f(int(input()))",
    "prints and reads": HONEST + "print('hello' * 1000)\nimport sys\nsys.stdin.read()",
    "a dataclass": "from __future__ import annotations\nfrom dataclasses import dataclass\n@dataclass\nclass P:\n"
    "    x: int\ndef f(x): return P(x).x * 2",
    "an IntEnum": "import enum\nclass E(enum.IntEnum):\n    A = 2\n    B = 4\n    C = -6\n"
    "def f(x): return {1: E.A, 2: E.B, -3: E.C}[x]",
    "a bool for an int": "def f(x): return {1: 2, 2: 4}.get(x, -6) * True",
    "a float for an int": "def f(x): return 2.0 * x",
    "carriage returns": HONEST.replace("\n", "\r\n"),
    "signals to itself": "import signal\ndone = []\nsignal.signal(signal.SIGUSR1, lambda *a: done.append(1))\n"
    "signal.raise_signal(signal.SIGUSR1)\ndef f(x): return 2 * x * len(done)",
    "sets its own limits": "import sys, resource, threading\nsys.setrecursionlimit(10000)\n"
    "threading.stack_size(1 << 24)\n"
    "resource.setrlimit(resource.RLIMIT_STACK, resource.getrlimit(resource.RLIMIT_STACK))\n" + HONEST,
}

SCRIPTS = {
    "script: prints": ("print(2 * int(input()))", "3", "6\n"),
    "script: exits with 0": ("import sys\nprint(1)\nsys.exit(0)", "", "1\n"),
    "script: exit()": ("print(1)\nexit()", "", "1\n"),
    "script: threads and exit handlers": (
        "import atexit, threading, time\natexit.register(print, 'last')\n"
        "threading.Thread(target=lambda: (time.sleep(0.05), print('second'))).start()\nprint('first')",
        "",
        "first\nsecond\nlast\n",
    ),
    "script: reads everything": ("import sys\nprint(sum(map(int, sys.stdin.read().split())))", "1 2 3\n4", "10\n"),
    "script: main": ("def main():\n    print('main')\nif __name__ == '__main__':\n    main()", "", "main\n"),
    "script: unicode": ("print('é', input())", "ü", "é ü\n"),
    "script: no trailing newline": ("import sys\nsys.stdout.write('x')", "", "x"),
}

PROGRAMS = (
    *(Program(name, source, ("ok",), kind="honest") for name, source in SOLUTIONS.items()),
    *(
        Program(name, source, statuses=("ok",), stdin=stdin, stdout=stdout, kind="honest")
        for name, (source, stdin, stdout) in SCRIPTS.items()
    ),
)
