"""Rows of docs/ssh.md about the laptop: its configuration, the path to the box, and the login."""

from __future__ import annotations

import sys
from functools import partial

from tests.support.ssh_case import Case, add
from tests.support.ssh_lab import CONNECT, NAME, SECRET, TWO_FACTORS, Lab, Row, pam_secret
from tests.support.sshd import make_key

CASES: list[Case] = []
case = partial(add, CASES)


def option(group: str, line: str, key: bool = True) -> None:
    """A row whose only peculiarity is a line of the configuration."""
    case(group, f"`{line}`", option=line)(lambda lab: Row(lab.config(lab.server(), line, key=key)))


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
