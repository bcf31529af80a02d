"""Attempts to escape: each is denied, and the task's tests pass.

Some use ``syscall(2)`` with x86-64 numbers and are left out on other machines.
"""

from __future__ import annotations

import platform

from tests.sandbox.hostile.program import DENIED, Program, escape

PARENT = "PARENT_PID"
"""Replaced by the pid of the process that runs the corpus."""
SECRET = "SECRET_FILE"
"""Replaced by the path of a world-readable file."""
MARK = "grpo-attack"
"""Prefix of the names that attacks try to leave behind."""

ABSENT = (*DENIED, "ENOENT")

PORTABLE = (
    escape("a TCP socket", "socket.create_connection(('127.0.0.1', 22), 1)"),
    escape("a TCP socket out", "socket.create_connection(('1.1.1.1', 53), 1)"),
    escape("a UDP socket", "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', 53))"),
    escape("an abstract Unix socket", "s = socket.socket(socket.AF_UNIX)\ns.bind('\\0grpo-attack')"),
    escape("a netlink socket", "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)"),
    escape("a pair of sockets bound", "a, b = socket.socketpair()\na.bind('s')"),
    escape("a descriptor through a pair", "a, b = socket.socketpair()\nsocket.send_fds(a, [b'x'], [0])"),
    escape("a name lookup", "try:\n    return socket.gethostbyname('example.com')\nexcept socket.gaierror:\n"
           "    return -errno.EPERM"),
    escape("the password file", "return open('/etc/passwd').read()"),
    escape("a world-readable file", f"return open({SECRET!r}).read()"),
    escape("a link to it", f"os.symlink({SECRET!r}, 'link') if not os.path.islink('link') else None\nopen('link')"),
    escape("a hard link to it", f"os.link({SECRET!r}, 'hard')", (*DENIED, "EXDEV")),
    escape("through the root directory", "os.chdir('/')\nopen('etc/passwd')"),
    escape("a listing of the root", "return os.listdir('/')"),
    escape("a listing of the temporary files", "return os.listdir('/tmp')"),
    escape("a listing of the home", "return os.listdir('/root')", ABSENT),
    escape("the slot's neighbours", f"return os.listdir(os.path.dirname({SECRET!r}))"),
    escape("the parent's environment", f"open('/proc/{PARENT}/environ', 'rb').read()", ABSENT),
    escape("its own environment file", "open('/proc/self/environ', 'rb').read()", ABSENT),
    escape("the parent's memory", f"open('/proc/{PARENT}/mem', 'rb')", ABSENT),
    escape("the processes", "return os.listdir('/proc')"),
    escape("its own memory, by file", "os.open('/proc/self/mem', os.O_RDWR)", ABSENT),
    escape("the kernel's settings", "open('/sys/kernel/mm/transparent_hugepage/enabled', 'w')", ABSENT),
    escape("a GPU", "open('/dev/nvidia0', 'rb')", ABSENT),
    escape("the disk", "open('/dev/vda', 'rb')", ABSENT),
    escape("the terminal", "open('/dev/tty', 'w')", (*ABSENT, "ENXIO")),
    escape("shared memory", f"open('/dev/shm/{MARK}', 'w')", ABSENT),
    escape("a file in /tmp", f"open('/tmp/{MARK}', 'w')"),
    escape("a directory in /tmp", f"os.mkdir('/tmp/{MARK}-directory')"),
    escape("a file in the home", f"open('/root/{MARK}', 'w')", ABSENT),
    escape("a file beside its slot", f"open({SECRET!r} + '-{MARK}', 'w')"),
    escape("a file above its directory", f"os.chdir('../..')\nopen('{MARK}', 'w')"),
    escape("a file in the standard library", f"open(os.path.dirname(os.__file__) + '/{MARK}.py', 'w')"),
    escape("a module of the standard library, written", "open(os.__file__, 'r+')"),
    escape("a module of the standard library, removed", "os.unlink(os.__file__)"),
    escape("a module of the standard library, renamed", "os.rename(os.__file__, 'os.py')", (*DENIED, "EXDEV")),
    escape("a module of the standard library, truncated", "os.truncate(os.__file__, 0)"),
    escape("the mode of an open module", "os.fchmod(os.open(os.__file__, os.O_RDONLY), 0o644)"),
    escape("the times of a module", "os.utime(os.__file__)"),
    escape("the mode of a file outside", f"os.chmod({SECRET!r}, 0)"),
    escape("the owner of a file outside", f"os.chown({SECRET!r}, -1, -1)"),
    escape("an attribute of a file outside", f"os.setxattr({SECRET!r}, 'user.x', b'y')"),
    escape("third-party packages", "import glob, sysconfig\n"
           "return open(sysconfig.get_path('purelib') + '/README.txt')", ABSENT),
    escape("a device made", "os.mknod('device', 0o20600, os.makedev(1, 1))"),
    escape("a named pipe", "os.mkfifo('pipe')"),
    escape("a subprocess", "import subprocess\nsubprocess.run(['/bin/true'])"),
    escape("os.system", "return -errno.EPERM if os.system('true') in (-1, 0x7f00) else 'ran'"),
    escape("posix_spawn", "os.posix_spawn('/bin/true', ['true'], {})"),
    escape("fork", "os.fork() or os._exit(0)"),
    escape("exec", "os.execv('/bin/true', ['true'])"),
    escape("exec of itself", "os.execv(sys.executable, [sys.executable])"),
    escape("multiprocessing", "import multiprocessing\nmultiprocessing.Process(target=print).start()"),
    escape("a pseudo-terminal", "os.openpty()", ABSENT),
    escape("fork in C", "pid = ctypes.CDLL(None, use_errno=True).fork()\nif pid == 0:\n    os._exit(0)\n"
           "return -ctypes.get_errno() if pid < 0 else pid"),
    escape("kill the parent", f"os.kill({PARENT}, 0)"),
    escape("kill everything", "os.kill(-1, 0)"),
    escape("kill its group", "os.kill(0, 0)"),
    escape("kill another group", "os.killpg(1, 0)"),
    escape("the parent's priority", f"os.setpriority(os.PRIO_PROCESS, {PARENT}, 19)"),
    escape("every process's priority", "os.setpriority(os.PRIO_USER, 0, 19)"),
    escape("the parent's cores", f"os.sched_setaffinity({PARENT}, [0])"),
    escape("a new session", "os.setsid()"),
    escape("a new process group", "os.setpgid(0, 0)"),
    escape("become root again", "os.setuid(0)"),
    escape("a signal through fcntl", "import fcntl\nr, w = os.pipe()\nfcntl.fcntl(r, 8, 1)\nfcntl.fcntl(r, 10, 9)"),
    escape("a terminal's input", "import fcntl, termios\nfcntl.ioctl(0, termios.TIOCSTI, b'x')"),
    escape("a higher limit", "import resource\ntry:\n    resource.setrlimit(resource.RLIMIT_CPU, (1000, 1000))\n"
           "except ValueError:\n    return -errno.EPERM\nreturn 'raised'"),
    escape("the parent's limits", f"import resource\nresource.prlimit({PARENT}, resource.RLIMIT_NOFILE, (8, 8))"),
    escape("an in-memory file", "os.memfd_create('x')"),
    escape("the job's descriptor", "os.fstat(3)", ("EBADF",)),
    escape("the ruleset's descriptor", "os.fstat(5)", ("EBADF",)),
    escape("the parent's variables", "return -errno.EPERM if 'GRPO_SANDBOX_CANARY' not in os.environ else 'seen'"),
    escape("a bind mount", "n = ctypes.CDLL(None, use_errno=True)\n"
           "return -ctypes.get_errno() if n.mount(b'/', b'.', None, 4096, None) else 'mounted'"),
    escape("a shared memory segment", "n = ctypes.CDLL(None, use_errno=True)\n"
           "return -ctypes.get_errno() if n.shmget(0x1234, 4096, 0o1666) < 0 else 'made'"),
    escape("a message queue", "n = ctypes.CDLL(None, use_errno=True)\n"
           "return -ctypes.get_errno() if n.msgget(0x1234, 0o1666) < 0 else 'made'"),
    escape("a shared lock", "import multiprocessing\nmultiprocessing.Lock()", (*ABSENT, "ENOSYS")),
)  # fmt: skip


def numbered(name: str, call: str, outcomes: tuple[str, ...] = DENIED) -> Program:
    """An escape through one system call, by its x86-64 number."""
    return escape(f"call: {name}", f"return syscall({call})", outcomes)


X86_64 = (
    numbered("ptrace of the parent", f"101, 16, {PARENT}, 0, 0"),
    numbered("process_vm_readv", f"310, {PARENT}, 0, 0, 0, 0, 0"),
    numbered("process_vm_writev", f"311, {PARENT}, 0, 0, 0, 0, 0"),
    numbered("pidfd_open", f"434, {PARENT}, 0"),
    numbered("pidfd_getfd", "438, 0, 0, 0"),
    numbered("kcmp", f"312, {PARENT}, {PARENT}, 0, 0, 0"),
    numbered("unshare of users", "272, 0x10000000"),
    numbered("setns", "308, 0, 0"),
    numbered("clone of a process", "56, 17, 0, 0, 0, 0"),
    numbered("clone into new namespaces", "56, 0x10010000 | 17, 0, 0, 0, 0"),
    numbered("clone3", "435, 0, 0", ("ENOSYS",)),
    numbered("vfork by fork's number", "57"),
    numbered("io_uring_setup", "425, 8, 0"),
    numbered("bpf", "321, 0, 0, 0"),
    numbered("perf_event_open", "298, 0, 0, 0, 0, 0"),
    numbered("userfaultfd", "323, 0"),
    numbered("keyctl", "250, 0, 0"),
    numbered("add_key", "248, 0, 0, 0, 0, 0"),
    numbered("a second filter", "317, 1, 0, 0"),
    numbered("prctl: survive the parent", "157, 1, 0, 0, 0, 0"),
    numbered("prctl: be dumpable", "157, 4, 1, 0, 0, 0"),
    numbered("personality", "135, 0x0040000"),
    numbered("open_by_handle_at", "304, 0, 0, 0"),
    numbered("mount by descriptors", "428, -100, 0, 1"),
    numbered("chroot", "161, b'.'"),
    numbered("pivot_root", "155, b'.', b'.'"),
    numbered("landlock again", "444, 0, 0, 1"),
    numbered("tkill", "200, 1, 9"),
    numbered("tgkill of the parent", f"234, {PARENT}, {PARENT}, 0"),
    numbered("a queued signal", f"129, {PARENT}, 9, 0"),
    numbered("mlockall", "151, 3"),
    numbered("quotactl", "179, 0, 0, 0, 0"),
    numbered("reboot", "169, 0, 0, 0, 0"),
    numbered("the clock", "227, 0, 0"),
    numbered("io ports", "172, 3"),
    numbered("socket with high bits", "41, (1 << 32) | 2, 1, 0"),
    numbered("sendto with an address", "44, 0, 0, 0, 0, 1 << 32, 16"),
    numbered("prlimit64 with high bits", f"302, (1 << 32) | {PARENT}, 0, 0, 0"),
    numbered("memory policy", "237, 0, 0, 0, 0, 0, 0"),
    numbered("pages moved", f"279, {PARENT}, 0, 0, 0, 0, 0"),
    numbered("inotify", "253"),
    numbered("fanotify", "300, 0, 0"),
    numbered("splice", "275, 0, 0, 0, 0, 0, 0"),
    numbered("a future call", "1000", ("ENOSYS",)),
)  # fmt: skip

MACHINE_CODE = """
import ctypes, mmap
memory = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
memory.write(CODE)
ctypes.CFUNCTYPE(ctypes.c_long)(ctypes.addressof(ctypes.c_char.from_buffer(memory)))()
def f(x): return 2 * x
"""
FOREIGN = (
    Program(
        "a call of 32-bit x86",
        MACHINE_CODE.replace("CODE", r"b'\xb8\x14\0\0\0\xcd\x80\xc3'"),
        ("killed",),
        kind="verdict",
    ),
    Program(
        "a call of x32",
        MACHINE_CODE.replace("CODE", r"b'\xb8\x27\0\0\x40\x0f\x05\xc3'"),
        ("killed",),
        kind="verdict",
    ),
)

PROGRAMS = (*PORTABLE, *((*X86_64, *FOREIGN) if platform.machine() == "x86_64" else ()))
