"""The rows of docs/ssh.md: each sets up a real server and the configuration of a laptop."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass

from tests.support.ssh_lab import NAME, SECRET, TWO_FACTORS, Lab, Row, pam_secret
from tests.support.sshd import make_key

Build = Callable[[Lab], Row]


@dataclass(frozen=True)
class Case:
    """One row."""

    group: str
    name: str
    build: Build
    needs: str = ""
    """A program it needs, or ``root``."""

    def missing(self) -> str:
        """Why it cannot run here, or ""."""
        if self.needs == "root":
            return "" if os.geteuid() == 0 else "needs the superuser (a mount namespace)"
        return "" if not self.needs or shutil.which(self.needs) else f"{self.needs} is not installed"


CASES: list[Case] = []


def case(group: str, name: str, needs: str = "") -> Callable[[Build], Build]:
    def add(build: Build) -> Build:
        CASES.append(Case(group, name, build, needs))
        return build

    return add


def option(group: str, line: str, key: bool = True) -> None:
    """A row whose only peculiarity is a line of the configuration."""
    case(group, f"`{line}`")(lambda lab: Row(lab.config(lab.server(), line, key=key)))


# ------------------------------------------------------------------------------------------------ configuration


@case("Configuration", "Alias with HostName, Port, User and IdentityFile")
def _(lab: Lab) -> Row:
    return Row(lab.config(lab.server()))


@case("Configuration", "Include")
def _(lab: Lab) -> Row:
    part = lab.folder / "part"
    part.write_text(lab.config(lab.server()))
    return Row(f"Include {part}\n")


@case("Configuration", "Match exec")
def _(lab: Lab) -> Row:
    return Row(f"Match originalhost {NAME} exec true\n" + lab.config(lab.server()).partition("\n")[2])


@case("Configuration", "An unknown option")
def _(lab: Lab) -> Row:
    return Row(lab.config(lab.server(), "NoSuchOption yes"))


@case("Configuration", "IgnoreUnknown with an option of another system")
def _(lab: Lab) -> Row:
    return Row("IgnoreUnknown UseKeychain\n" + lab.config(lab.server(), "UseKeychain yes"))


for _line in (
    "Compression yes",
    "RekeyLimit 1M",
    "AddressFamily inet",
    "BindAddress 127.0.0.1",
    "ConnectTimeout 5",
    "SetEnv LAB=1",
    "RemoteCommand uptime",
    "RequestTTY force",
    "LogLevel QUIET",
    "BatchMode yes",
    "ControlMaster auto",
):
    option("Configuration", _line)


@case("Configuration", "LocalForward to a port in use")
def _(lab: Lab) -> Row:
    server = lab.server()
    return Row(lab.config(server, f"LocalForward {server.port} 127.0.0.1:1"))


@case("Configuration", "A master of the user that is running")
def _(lab: Lab) -> Row:
    row = Row(lab.config(lab.server(), f"ControlPath {lab.folder}/%C"))
    config = lab.folder / "ssh_config"
    config.write_text(row.config)
    lab.start_master(config)
    return row


# --------------------------------------------------------------------------------------------------------- paths


@case("Path to the box", "ProxyJump")
def _(lab: Lab) -> Row:
    jump, box = lab.server(), lab.server()
    return Row(lab.config(jump, name="jump") + lab.config(box, "ProxyJump jump"))


@case("Path to the box", "ProxyJump chain of two")
def _(lab: Lab) -> Row:
    one, two, box = lab.server(), lab.server(), lab.server()
    hops = lab.config(one, name="one") + lab.config(two, name="two")
    return Row(hops + lab.config(box, "ProxyJump one,two"))


@case("Path to the box", "ProxyJump through a host that refuses the login")
def _(lab: Lab) -> Row:
    jump, box = lab.server(), lab.server()
    stranger = make_key(lab.folder / "stranger")
    config = lab.config(jump, f"IdentityFile {stranger}", "IdentitiesOnly yes", key=False, name="jump")
    return Row(config + lab.config(box, "ProxyJump jump"))


@case("Path to the box", "`key` of the box, and the jump host's key only in the agent")
def _(lab: Lab) -> Row:
    jump, box = lab.server(), lab.server()
    socket = lab.agent(lab.key("jumper", jump))
    jump.authorized_keys.write_text(lab.public(lab.folder / "jumper"))
    config = lab.config(jump, key=False, name="jump") + lab.config(box, "ProxyJump jump", key=False)
    return Row(config, {"key": str(box.user_key)}, {"SSH_AUTH_SOCK": socket})


@case("Path to the box", "ProxyCommand")
def _(lab: Lab) -> Row:
    script = lab.folder / "connect.py"
    script.write_text(CONNECT)
    return Row(lab.config(lab.server(), f"ProxyCommand {sys.executable} {script} %h %p"))


@case("Path to the box", "ProxyCommand that does not exist")
def _(lab: Lab) -> Row:
    return Row(lab.config(lab.server(), "ProxyCommand /nonexistent/nc %h %p"))


@case("Path to the box", "IPv6")
def _(lab: Lab) -> Row:
    server = lab.server("ListenAddress ::1\n", known=False)
    lab.know(f"[::1]:{server.port}", server)
    return Row(lab.config(server, "HostName ::1"))


def _zone(lab: Lab, **options: str) -> Row:
    address = lab.link_local()
    server = lab.server(f"ListenAddress {address}\n", known=False)
    lab.know(f"[{address}]:{server.port}", server)
    if options:
        return Row(lab.config(server, name=address).replace("HostName 127.0.0.1\n", ""), {"host": address})
    return Row(lab.config(server, f"HostName {address.replace('%', '%%')}"))


@case("Path to the box", "IPv6 with a zone, as the host (`fe80::1%eth0`)", needs="root")
def _(lab: Lab) -> Row:
    return _zone(lab, host="address")


@case("Path to the box", "IPv6 with a zone in HostName (`fe80::1%%eth0`)", needs="root")
def _(lab: Lab) -> Row:
    return _zone(lab)


@case("Path to the box", "Nothing listens")
def _(lab: Lab) -> Row:
    server = lab.server()
    server.stop()
    return Row(lab.config(server))


CONNECT = """
import os, socket, sys, threading
sock = socket.create_connection((sys.argv[1], int(sys.argv[2])))
def pull():
    while data := sock.recv(65536):
        os.write(1, data)
    os._exit(0)
threading.Thread(target=pull).start()
while data := os.read(0, 65536):
    sock.sendall(data)
sock.shutdown(socket.SHUT_WR)
"""

# --------------------------------------------------------------------------------------------------------- login


def _with_agent(lab: Lab, *lines: str, environment: bool = True, extra: str = "", key: bool = False) -> Row:
    """A key that only the agent has."""
    server = lab.server(extra)
    held = lab.key("held", server)
    server.authorized_keys.write_text(lab.public(held))
    socket = lab.agent(held)
    lines = tuple(line.replace("SOCKET", socket) for line in lines)
    return Row(lab.config(server, *lines, key=key), environment={"SSH_AUTH_SOCK": socket} if environment else {})


@case("Login", "A key in the agent")
def _(lab: Lab) -> Row:
    return _with_agent(lab)


@case("Login", "IdentityAgent: a socket")
def _(lab: Lab) -> Row:
    return _with_agent(lab, "IdentityAgent SOCKET", environment=False)


@case("Login", "IdentityAgent: a variable")
def _(lab: Lab) -> Row:
    row = _with_agent(lab, "IdentityAgent $LAB_AGENT")
    return Row(row.config, environment={"LAB_AGENT": row.environment["SSH_AUTH_SOCK"]})


@case("Login", "IdentityAgent none")
def _(lab: Lab) -> Row:
    return _with_agent(lab, "IdentityAgent none")


def _seven_keys(lab: Lab, *lines: str, extra: str = "") -> Row:
    server = lab.server(extra)
    socket = lab.agent(*(make_key(lab.folder / f"other{i}") for i in range(7)))
    return Row(lab.config(server, *lines), environment={"SSH_AUTH_SOCK": socket})


@case("Login", "7 other keys in the agent")
def _(lab: Lab) -> Row:
    return _seven_keys(lab)


@case("Login", "7 other keys in the agent, IdentitiesOnly")
def _(lab: Lab) -> Row:
    return _seven_keys(lab, "IdentitiesOnly yes")


@case("Login", "7 other keys in the agent, IdentitiesOnly, MaxAuthTries 3")
def _(lab: Lab) -> Row:
    return _seven_keys(lab, "IdentitiesOnly yes", extra="MaxAuthTries 3\n")


@case("Login", "7 keys in the agent, the named one among them, MaxAuthTries 3")
def _(lab: Lab) -> Row:
    server = lab.server("MaxAuthTries 3\n")
    keys = [make_key(lab.folder / f"other{i}") for i in range(6)]
    return Row(lab.config(server), environment={"SSH_AUTH_SOCK": lab.agent(*keys, server.user_key)})


for _kind in ("rsa", "ecdsa"):

    @case("Login", f"{_kind.upper()} key")
    def _(lab: Lab, kind: str = _kind) -> Row:
        server = lab.server()
        server.authorized_keys.write_text("")
        return Row(lab.config(server, f"IdentityFile {lab.key('other', server, kind=kind)}", key=False))


def _certified(lab: Lab, *options: str, sibling: bool, line: str = "") -> Row:
    ca = make_key(lab.folder / "ca")
    server = lab.server(f"TrustedUserCAKeys {ca}.pub\n")
    server.authorized_keys.write_text("")
    certificate = lab.sign(server.user_key, "-n", server.user, *options)
    if sibling:
        return Row(lab.config(server))
    elsewhere = lab.folder / "elsewhere.pub"
    certificate.rename(elsewhere)
    return Row(lab.config(server, f"CertificateFile {elsewhere}"))


@case("Login", "A certificate beside the key")
def _(lab: Lab) -> Row:
    return _certified(lab, sibling=True)


@case("Login", "CertificateFile")
def _(lab: Lab) -> Row:
    return _certified(lab, sibling=False)


@case("Login", "An expired certificate")
def _(lab: Lab) -> Row:
    return _certified(lab, "-V", "20200101:20200102", sibling=True)


@case("Login", "An encrypted key, its passphrase asked")
def _(lab: Lab) -> Row:
    server = lab.server()
    key = lab.key("locked", server, passphrase=SECRET)
    return Row(lab.config(server, f"IdentityFile {key}", key=False), answers={"passphrase": SECRET})


@case("Login", "An encrypted key, wrong passphrase")
def _(lab: Lab) -> Row:
    server = lab.server()
    key = lab.key("locked", server, passphrase=SECRET)
    return Row(lab.config(server, f"IdentityFile {key}", key=False), answers={"passphrase": "wrong"})


@case("Login", "Two keys (AuthenticationMethods publickey,publickey)")
def _(lab: Lab) -> Row:
    server = lab.server("AuthenticationMethods publickey,publickey\n")
    return Row(lab.config(server, f"IdentityFile {lab.key('second', server)}"))


@case("Login", "A password", needs="root")
def _(lab: Lab) -> Row:
    extra = "UsePAM yes\nPasswordAuthentication yes\nPermitRootLogin yes\nAuthenticationMethods password\n"
    server = lab.server(extra, files=pam_secret(lab.folder))
    return Row(lab.config(server), answers={"password": SECRET})


@case("Login", "A key and a code (publickey,keyboard-interactive, PAM)", needs="root")
def _(lab: Lab) -> Row:
    return _second_factor(lab, SECRET)


@case("Login", "A key and a wrong code", needs="root")
def _(lab: Lab) -> Row:
    return _second_factor(lab, "wrong")


def _second_factor(lab: Lab, answer: str) -> Row:
    return Row(lab.config(lab.server(TWO_FACTORS, files=pam_secret(lab.folder))), answers={"prompt": answer})


@case("Login", "A key that the box does not accept")
def _(lab: Lab) -> Row:
    stranger = make_key(lab.folder / "stranger")
    return Row(lab.config(lab.server(), f"IdentityFile {stranger}", "IdentitiesOnly yes", key=False))


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
