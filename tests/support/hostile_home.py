"""A home whose owner has configured tmux, git, ssh, boto, pip, bash and Python otherwise than our programs expect."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

FILES = {
    ".tmux.conf": """
        set -g destroy-unattached on
        set -s exit-empty off
        set -g default-command 'echo a shell of mine; exec sh'
        set -g base-index 3
        set -g pane-base-index 2
        set -g prefix C-a
        set -g status off
        set -g default-terminal nobody-knows
        set-hook -g session-created 'display-message created'
        set-hook -g after-new-session 'split-window -hb -d'
    """,
    ".gitconfig": """
        [user]
            name = A
            email = a@b
        [log]
            showSignature = true
        [diff]
            context = 0
            external = false
            submodule = log
            noprefix = true
        [status]
            renames = copies
            showUntrackedFiles = no
            short = true
        [color]
            ui = always
        [core]
            pager = false
        [alias]
            rev-parse = !false
        [safe]
            bareRepository = explicit
        [commit]
            gpgSign = true
    """,
    ".ssh/config": """
        Host *
            StrictHostKeyChecking no
            UserKnownHostsFile /dev/null
            RemoteCommand uptime
            RequestTTY force
            ControlMaster auto
            ControlPath ~/.ssh/%C
            IdentitiesOnly yes
            VisualHostKey yes
            SendEnv *
    """,
    ".aws/config": """
        [default]
        region = eu-central-7
        endpoint_url = http://127.0.0.1:9
        [profile work]
        region = eu-central-8
        endpoint_url = http://127.0.0.1:9
        s3 =
            addressing_style = virtual
            payload_signing_enabled = false
    """,
    ".aws/credentials": """
        [work]
        aws_access_key_id = of-another-store
        aws_secret_access_key = of-another-store
    """,
    ".bashrc": """
        echo "Welcome"
        echo "You have mail" >&2
        printf 'no line'
        [ -t 0 ] && read -t 0.1 -p "Install updates? [y/n] " answer
        [[ $- == *i* ]] && exec sh
    """,
    ".config/pip/pip.conf": """
        [global]
        index-url = http://127.0.0.1:9/simple
        require-virtualenv = true
        user = true
    """,
    ".startup.py": 'raise SystemExit("of PYTHONSTARTUP")\n',
}
VARIABLES = {
    "LC_ALL": "tlh_KL.UTF-8",
    "LANG": "tlh_KL.UTF-8",
    "AWS_PROFILE": "work",
    "PAGER": "false",
    "GIT_PAGER": "false",
}


def hostile_home(home: Path) -> dict[str, str]:
    """Write the files; returns variables of the login. ``home/passwd`` is /etc/passwd with it as the user's home."""
    for name, text in FILES.items():
        file = home / name
        file.parent.mkdir(0o700, parents=True, exist_ok=True)
        file.write_text("\n".join(line[8:] for line in text.splitlines()) if text.startswith("\n") else text)
    own = pwd.getpwuid(os.getuid())
    lines = [line for line in Path("/etc/passwd").read_text().splitlines() if line.split(":")[2] != str(own.pw_uid)]
    (home / "passwd").write_text(
        "\n".join([f"{own.pw_name}:x:{own.pw_uid}:{own.pw_gid}::{home}:/bin/bash", *lines, ""])
    )
    startup = home / ".startup.py"
    return {"HOME": str(home), "PYTHONSTARTUP": str(startup), **VARIABLES}
