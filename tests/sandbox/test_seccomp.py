"""The seccomp filter, run by a BPF interpreter, and its system call numbers."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import pytest

from grpo_train.sandbox import (
    seccomp,
    syscalls,
)

ALLOW, EPERM, ENOSYS, KILL = 0x7FFF0000, 0x00050001, 0x00050026, 0x80000000


def verdict(machine: str, number: int, arguments: tuple[int, ...] = (), arch: int | None = None, pid: int = 77) -> int:
    """What the filter returns for a system call: an interpreter for the BPF instructions it uses."""
    built = seccomp.build(machine)
    code = bytearray(built.code)
    for offset in built.pid_offsets:
        code[offset : offset + 4] = pid.to_bytes(4, "little")
    arch = seccomp.AUDIT_ARCH[syscalls.MACHINES.index(machine)] if arch is None else arch
    data = struct.pack("<IIQ6Q", number, arch, 0, *arguments, *[0] * (6 - len(arguments)))
    step, value = 0, 0
    while True:
        opcode, if_true, if_false, k = struct.unpack_from("<HBBI", code, 8 * step)
        step += 1
        if opcode == seccomp.LOAD:
            (value,) = struct.unpack_from("<I", data, k)
        elif opcode == seccomp.JUMP:
            step += k
        elif opcode == seccomp.RETURN:
            return int(k)
        else:
            conditions = {
                seccomp.EQUAL: value == k,
                seccomp.GREATER_EQUAL: value >= k,
                seccomp.ANY_BIT: bool(value & k),
            }
            step += if_true if conditions[opcode] else if_false


@pytest.mark.parametrize("machine", syscalls.MACHINES)
def test_only_listed_calls_are_allowed(machine: str) -> None:
    column = syscalls.MACHINES.index(machine)
    allowed = {numbers[column] for numbers in seccomp.ALLOWED.values()}
    conditional = {numbers[column] for numbers in seccomp.CONDITIONAL.values()}
    for number in range(600):
        if number in conditional:
            continue
        expected = ALLOW if number in allowed else ENOSYS if number > 450 or number == seccomp.CLONE3 else EPERM
        assert verdict(machine, number) == expected, number
    assert verdict(machine, seccomp.X32_BIT) == KILL
    assert verdict(machine, 0, arch=0x40000003) == KILL  # i386


@pytest.mark.parametrize("machine", syscalls.MACHINES)
def test_conditional_calls_depend_on_arguments(machine: str) -> None:
    column = syscalls.MACHINES.index(machine)

    def of(name: str, *arguments: int) -> int:
        return verdict(machine, seccomp.CONDITIONAL[name][column], arguments)

    thread = 0x3D0F00  # flags of glibc's pthread_create
    assert of("clone", thread) == ALLOW
    assert of("clone", 17) == EPERM
    for new in (0x20000, 0x80, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
        assert of("clone", thread | new) == EPERM
    assert of("kill", 77, 9) == of("tgkill", 77, 78, 6) == ALLOW
    assert of("kill", 1, 9) == of("kill", (1 << 64) - 1, 9) == of("tgkill", 1, 1, 0) == of("tkill", 77, 9) == EPERM
    assert of("fcntl", 0, 3) == of("fcntl", 0, 1030) == ALLOW
    assert of("fcntl", 0, 8, 1) == of("fcntl", 0, 10, 9) == of("fcntl", 0, 15) == EPERM
    assert of("ioctl", 0, 0x5401) == ALLOW
    assert of("ioctl", 0, 0x5412) == of("ioctl", 0, 0x4004667F) == EPERM
    assert of("prctl", 15) == ALLOW
    assert {of("prctl", option) for option in (1, 4, 22, 38, 23)} == {EPERM}
    assert of("prlimit64", 0) == ALLOW
    assert of("prlimit64", 1) == EPERM
    assert of("socketpair", 1) == ALLOW
    assert of("socketpair", 2) == EPERM
    assert of("sendto", 3, 0, 0, 0, 0) == ALLOW
    assert of("sendto", 3, 0, 0, 0, 5) == of("sendto", 3, 0, 0, 0, 1 << 40) == EPERM


HEADERS = {
    "x86_64": (Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"), r"#define __NR_(\w+) (\d+)"),
    "aarch64": (Path("/usr/include/asm-generic/unistd.h"), r"#define __NR(?:3264)?_(\w+) (\d+)"),
}


@pytest.mark.parametrize("machine", [name for name, (path, _) in HEADERS.items() if path.exists()])
def test_numbers_match_the_kernel_headers(machine: str) -> None:
    path, pattern = HEADERS[machine]
    kernels = {name: int(number) for name, number in re.findall(pattern, path.read_text())}
    kernels.setdefault("newfstatat", kernels.get("fstatat", -1))
    column = syscalls.MACHINES.index(machine)
    for name, numbers in {**seccomp.ALLOWED, **seccomp.CONDITIONAL, **syscalls.NUMBERS}.items():
        assert kernels.get(name) == numbers[column], name
