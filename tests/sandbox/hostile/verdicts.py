"""Attacks on the verdict: none may pass a test, and each has an expected reason."""

from __future__ import annotations

from tests.sandbox.hostile.program import Program

SIMPLE: dict[str, tuple[str, tuple[str, ...]]] = {
    "sys.exit(0) when loaded": ("import sys\nsys.exit(0)\ndef f(x): return 0", ("exit",)),
    "os._exit(0) when loaded": ("import os\nos._exit(0)", ("exit",)),
    "os._exit(0) in the function": ("import os\ndef f(x):\n    os._exit(0)", ("exit",)),
    "raise SystemExit": ("raise SystemExit(0)", ("exit",)),
    "sys.exit in the function": ("import sys\ndef f(x):\n    sys.exit(0)", ("exit",)),
    "KeyboardInterrupt in the function": ("def f(x):\n    raise KeyboardInterrupt", ("exception",)),
    "atexit exits with 0": ("import atexit, os\natexit.register(os._exit, 0)\n1 / 0", ("exception",)),
    "excepthook exits with 0": ("import sys, os\nsys.excepthook = lambda *a: os._exit(0)\n1 / 0", ("exception",)),
    "an int equal to everything": (
        "class A(int):\n    __eq__ = lambda s, o: True\n    __hash__ = int.__hash__\ndef f(x): return A(7)",
        ("wrong_answer",),
    ),
    "an object equal to everything": (
        "class A:\n    def __eq__(self, other): return True\ndef f(x): return A()",
        ("unsupported_value",),
    ),
    "an object that claims to be an int": (
        "class A:\n    __class__ = int\n    def __eq__(s, o): return True\n    def __index__(s): return 2\n"
        "def f(x): return A()",
        ("unsupported_value",),
    ),
    "a metaclass that claims to be int": (
        "class M(type):\n    __eq__ = lambda s, o: True\n    __hash__ = type.__hash__\n"
        "    __instancecheck__ = __subclasscheck__ = lambda s, o: True\n"
        "class A(metaclass=M):\n    __eq__ = lambda s, o: True\ndef f(x): return A()",
        ("unsupported_value",),
    ),
    "a list with custom iteration and equality": (
        "class L(list):\n    __eq__ = lambda s, o: True\n    __iter__ = lambda s: iter([2])\n"
        "    __len__ = lambda s: 1\ndef f(x): return L([5])",
        ("wrong_answer",),
    ),
    "a dict with evil items": (
        "class D(dict):\n    __eq__ = lambda s, o: True\n    def items(self): raise SystemExit(0)\n"
        "def f(x): return D()",
        ("wrong_answer",),
    ),
    "a str equal to everything": (
        "class S(str):\n    __eq__ = lambda s, o: True\n    __hash__ = str.__hash__\ndef f(x): return S('2')",
        ("wrong_answer",),
    ),
    "an object with __reduce__": (
        "import os\nclass R:\n    def __reduce__(self): return (os.system, ('touch /tmp/grpo-attack-reduce',))\n"
        "def f(x): return R()",
        ("unsupported_value",),
    ),
    "prints that it passed": (
        "print('passed')\nprint('OK')\nprint({'passed': [True] * 3})\ndef f(x): return None",
        ("wrong_answer",),
    ),
    "rebinds eval, exec, compile and AssertionError": (
        "import builtins\nbuiltins.eval = lambda *a, **k: 2\nbuiltins.exec = lambda *a, **k: None\n"
        "builtins.compile = lambda *a, **k: '2'\nbuiltins.AssertionError = Exception\n"
        "builtins.isinstance = lambda *a: True\nbuiltins.len = lambda *a: 0\ndef f(x): return None",
        ("wrong_answer",),
    ),
    "deletes every built-in name": (
        "import builtins\ndef f(x): return None\nfor name in list(vars(builtins)):\n"
        "    if name != '__build_class__': vars(builtins).pop(name)",
        ("exception", "exit", "wrong_answer"),
    ),
    "an open triple quote": ("def f(x):\n    return 0\n'''", ("syntax_error",)),
    "a tail that would swallow tests": ("def f(x):\n    return 0\nif False: #", ("syntax_error",)),
    "no function": ("g = 1", ("exception",)),
    "empty source": ("", ("exception",)),
    "a null byte": ("def f(x): return 2*x\n\0", ("syntax_error",)),
    "a cyclic list": ("a = []\na.append(a)\ndef f(x): return a", ("unsupported_value",)),
    "a cyclic dict": ("d = {}\nd[1] = d\ndef f(x): return d", ("unsupported_value",)),
    "five million elements": ("def f(x): return [0] * 5_000_000", ("unsupported_value",)),
    "an endless generator": ("def f(x):\n    while True: yield 2", ("unsupported_value",)),
    "a number of ten million digits": ("def f(x): return 1 << 33_000_000", ("unsupported_value",)),
    "a string of 50 MB": ("def f(x): return 'a' * 50_000_000", ("unsupported_value",)),
    "a thousand nested lists": (
        "def f(x):\n    a = []\n    for _ in range(1000): a = [a]\n    return a",
        ("unsupported_value",),
    ),
    "integers with one hash": (
        "def f(x): return {k * ((1 << 61) - 1) for k in range(2000)}",
        ("unsupported_value",),
    ),
    "not a number": ("def f(x): return float('nan')", ("wrong_answer",)),
    "an audit hook that raises": (
        "import sys\ndef f(x): return 0\ndef hook(event, arguments): raise RuntimeError\nsys.addaudithook(hook)",
        ("exception", "exit"),
    ),
    "a trace function that ends the process": (
        "import sys, os\ndef f(x): return 0\nsys.settrace(lambda *a: os._exit(0))\n"
        "sys.setprofile(lambda *a: os._exit(0))",
        ("exit",),
    ),
    "clears sys.modules": ("import sys\nsys.modules.clear()\ndef f(x): return 0", ("wrong_answer",)),
    "closes every descriptor": ("import os\nos.closerange(0, 64)\ndef f(x): return 0", ("exit",)),
    "kills itself": ("import os, signal\nos.kill(os.getpid(), 9)\ndef f(x): return 0", ("killed", "wrong_answer")),
    "aborts": ("import os\nos.abort()", ("killed",)),
    "a null pointer": ("import ctypes\nctypes.string_at(0)", ("killed",)),
    "a function that depends on the tests' text": (
        "import sys, gc\nfound = None\nneedle, tail = ')1(f', '2 == '\n"
        "frame = sys._getframe()\nwhile frame:\n"
        "    for value in list(frame.f_locals.values()) + list(frame.f_globals.values()):\n"
        "        if needle[::-1] + tail[::-1] in repr(value): found = value\n    frame = frame.f_back\n"
        "for o in gc.get_objects():\n    try:\n        if needle[::-1] + tail[::-1] in repr(o)[:10000]: found = o\n"
        "    except Exception: pass\ndef f(x): return found and 2 * x",
        ("wrong_answer",),
    ),
}

# Records that a program writes to the result pipe itself; it can find the tag if it searches for it.
FORGE = """
import os, gc, sys
def send(letter, index, content, tag):
    os.write(4, tag + letter + index.to_bytes(4, "little") + len(content).to_bytes(4, "little") + content)
frame = sys._getframe()
while "report" not in frame.f_locals:
    frame = frame.f_back
TAG = frame.f_locals["report"].tag
def number(n):
    return n.to_bytes(4, "little")
def blob(tag, content):
    return tag + number(len(content)) + content
"""
FORGED = {
    "with a guessed tag": ('send(b"V", 0, b"T", b"\\0" * 8)\nos._exit(0)', ("forged_results",)),
    "with text": ('os.write(4, b"{\\"passed\\": true}\\n" * 3)\nos._exit(0)', ("forged_results",)),
    "with text before honest results": ('os.write(4, b"x")\ndef f(x): return 2 * x', ("forged_results",)),
    "with the real tag, all true": (
        'for i in range(3): send(b"V", i, b"T", TAG)\nsend(b"P", 0, b"ok\\t", TAG)\n'
        'send(b"D", 0, b"", TAG)\nos._exit(0)',
        ("wrong_answer",),
    ),
    "with the verdict as a claim": (
        'for i in range(3): send(b"X", i, b"ok\\tpassed", TAG)\nsend(b"D", 0, b"", TAG)\nos._exit(0)',
        ("exception",),
    ),
    "a hundred thousand nested lists": (
        'send(b"V", 0, (b"l" + number(1)) * 100_000, TAG)\nos._exit(0)',
        ("unsupported_value",),
    ),
    "a false count": ('send(b"V", 0, b"l" + b"\\xff" * 4, TAG)\nos._exit(0)', ("unsupported_value",)),
    "a false length": ('send(b"V", 0, b"s" + b"\\xff" * 4, TAG)\nos._exit(0)', ("unsupported_value",)),
    "half a million empty sets": (
        'send(b"V", 0, b"l" + number(500_000) + (b"e" + number(0)) * 500_000, TAG)\nos._exit(0)',
        ("unsupported_value",),
    ),
    "a set of integers with one hash": (
        'content = b"".join(blob(b"i", (k * ((1 << 61) - 1)).to_bytes(12, "little")) for k in range(9000))\n'
        'send(b"V", 0, b"e" + number(9000) + content, TAG)\nos._exit(0)',
        ("unsupported_value",),
    ),
    "a hundred thousand keys": (
        'content = b"".join(blob(b"i", k.to_bytes(4, "little")) + b"N" for k in range(100_000))\n'
        'send(b"V", 0, b"d" + number(100_000) + content, TAG)\nos._exit(0)',
        ("unsupported_value",),
    ),
    "a list in a set": (
        'send(b"V", 0, b"e" + number(1) + b"l" + number(0), TAG)\nos._exit(0)',
        ("unsupported_value",),
    ),
    "an integer of 4 MB": ('send(b"V", 0, blob(b"i", b"\\x01" * 4_000_000), TAG)\nos._exit(0)', ("wrong_answer",)),
    "a float that is text": ('send(b"V", 0, blob(b"f", b"0x1p9999999999"), TAG)\nos._exit(0)', ("unsupported_value",)),
    "text that is not UTF-8": ('send(b"V", 0, blob(b"s", b"\\xff\\xfe"), TAG)\nos._exit(0)', ("unsupported_value",)),
    "an unknown tag": ('send(b"V", 0, b"\\x80", TAG)\nos._exit(0)', ("unsupported_value",)),
    "a truncated record": ('os.write(4, TAG + b"V")\nos._exit(0)', ("exit",)),
    "a hundred thousand records": (
        'for i in range(100_000): os.write(4, TAG + b"V" + bytes(8))\nos._exit(0)',
        ("forged_results",),
    ),
    "many large values": (
        'for i in range(3): send(b"V", i, b"l" + number(150_000) + b"N" * 150_000, TAG)\nos._exit(0)',
        ("wrong_answer",),
    ),
    "denials by the thousand": (
        'for i in range(5000): send(b"A", i, str(i).encode(), TAG)\nos._exit(0)',
        ("exit",),
    ),
}

PROGRAMS = (
    *(Program(name, source, reasons, kind="verdict") for name, (source, reasons) in SIMPLE.items()),
    *(Program(f"forges {name}", FORGE + source, reasons, kind="verdict") for name, (source, reasons) in FORGED.items()),
)
