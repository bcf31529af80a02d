"""Rows of docs/ssh.md about the box: its host key, its algorithms, and the account."""

from __future__ import annotations

import shutil
import subprocess
from functools import partial

from tests.support.ssh_case import Case, add
from tests.support.ssh_lab import Lab, Row
from tests.support.sshd import make_key

CASES: list[Case] = []
case = partial(add, CASES)


# ------------------------------------------------------------------------------------------------------ host key


@case("Host key", "Unknown, accepted")
def _(lab: Lab) -> Row:
    return Row(lab.config(lab.server(known=False)))


@case("Host key", "Unknown, rejected")
def _(lab: Lab) -> Row:
    return Row(lab.config(lab.server(known=False)), host_key=False)


@case("Host key", "Unknown, StrictHostKeyChecking yes")
def _(lab: Lab) -> Row:
    return Row(lab.config(lab.server(known=False), "StrictHostKeyChecking yes"))


@case("Host key", "Unknown, StrictHostKeyChecking no")
def _(lab: Lab) -> Row:
    return Row(lab.config(lab.server(known=False), "StrictHostKeyChecking no"))


@case("Host key", "Hashed names in known_hosts")
def _(lab: Lab) -> Row:
    server = lab.server()
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(lab.known)], check=True, capture_output=True)
    return Row(lab.config(server))


@case("Host key", "Another key in known_hosts")
def _(lab: Lab) -> Row:
    server = lab.server()
    server.new_host_key()
    return Row(lab.config(server))


@case("Host key", "HostKeyAlias")
def _(lab: Lab) -> Row:
    server = lab.server(known=False)
    lab.know("my-box", server)
    return Row(lab.config(server, "HostKeyAlias my-box"))


@case("Host key", "GlobalKnownHostsFile")
def _(lab: Lab) -> Row:
    config = lab.config(lab.server(), f"GlobalKnownHostsFile {lab.known}", known=False)
    return Row(config + f"  UserKnownHostsFile {lab.folder}/none\n")


@case("Host key", "@cert-authority")
def _(lab: Lab) -> Row:
    key = make_key(lab.folder / "certified")
    certificate = lab.sign(key, "-n", "127.0.0.1", host=True)
    server = lab.server(f"HostKey {key}\nHostCertificate {certificate}\n", known=False)
    lab.known.write_text(f"@cert-authority * {lab.public(lab.folder / 'ca')}\n")
    return Row(lab.config(server))


@case("Host key", "@revoked")
def _(lab: Lab) -> Row:
    server = lab.server()
    lab.know("*", server, "@revoked")
    return Row(lab.config(server))


@case("Host key", "RevokedHostKeys")
def _(lab: Lab) -> Row:
    server = lab.server()
    return Row(lab.config(server, f"RevokedHostKeys {server.host_key}.pub"))


# ---------------------------------------------------------------------------------------------------- algorithms

for _title, _extra in (
    ("Only chacha20-poly1305", "Ciphers chacha20-poly1305@openssh.com\n"),
    ("Only sntrup761x25519", "KexAlgorithms sntrup761x25519-sha512@openssh.com\n"),
    ("Only curve25519-sha256", "KexAlgorithms curve25519-sha256\n"),
    ("Only aes256-gcm", "Ciphers aes256-gcm@openssh.com\n"),
    ("Only umac-128-etm", "Ciphers aes256-ctr\nMACs umac-128-etm@openssh.com\n"),
    ("Only diffie-hellman-group1-sha1", "KexAlgorithms diffie-hellman-group1-sha1\n"),
):
    case("Algorithms of the box", _title)(lambda lab, extra=_extra: Row(lab.config(lab.server(extra))))  # type: ignore[misc]


# ----------------------------------------------------------------------------------------------------- the account


@case("Account", "MaxSessions 1")
def _(lab: Lab) -> Row:
    return Row(lab.config(lab.server("MaxSessions 1\n")))


@case("Account", "A ForceCommand that runs the command")
def _(lab: Lab) -> Row:
    return Row(lab.config(lab.server('ForceCommand /bin/sh -c "$SSH_ORIGINAL_COMMAND"\n')))


@case("Account", "A ForceCommand that does not")
def _(lab: Lab) -> Row:
    return Row(lab.config(lab.server("ForceCommand echo only git here; exit 1\n")))


for _shell in ("bash", "fish", "rbash", "tcsh", "zsh"):

    @case("Account", f"Login shell {_shell}", needs=_shell)
    def _(lab: Lab, shell: str = _shell) -> Row:
        return Row(lab.config(lab.server(f'ForceCommand {shutil.which(shell)} -c "$SSH_ORIGINAL_COMMAND"\n')))


@case("Account", "Login shell nologin", needs="/usr/sbin/nologin")
def _(lab: Lab) -> Row:
    return Row(lab.config(lab.server('ForceCommand /usr/sbin/nologin -c "$SSH_ORIGINAL_COMMAND"\n')))


@case("Account", "A greeting of 27 KB and a banner")
def _(lab: Lab) -> Row:
    banner, noisy = lab.folder / "banner", lab.folder / "noisy"
    banner.write_text("Authorized use only.\n" * 20)
    lines = ("yes 'a noisy .bashrc' | head -c 27000", "yes noise | head -c 9000 >&2", 'eval "$SSH_ORIGINAL_COMMAND"')
    noisy.write_text("\n".join(lines))
    return Row(lab.config(lab.server(f"Banner {banner}\nForceCommand /bin/bash {noisy}\n")))


for _title, _root in (
    ("quotes", 'it\'s a "root"'),
    ("backslashes", "back\\slash\\"),
    ("`!`", "wow!!"),
    ("a newline", "two\nlines"),
    ("`$(…)`", "$(exit 1)`exit 1`"),
):

    @case("Account", f"A root with {_title}, tcsh", needs="tcsh")
    def _(lab: Lab, root: str = _root) -> Row:
        (lab.folder / root).mkdir()
        server = lab.server('ForceCommand /usr/bin/tcsh -c "$SSH_ORIGINAL_COMMAND"\n')
        return Row(lab.config(server), {"root": str(lab.folder / root)})


@case("Account", "DenyUsers")
def _(lab: Lab) -> Row:
    return Row(lab.config(lab.server("DenyUsers *\n")))
