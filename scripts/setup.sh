#!/usr/bin/env bash
# Makes .venv with the laptop's part, the box's part and the tests' tools; brings uv, tmux and sshd where it can.
# With --programs-only it looks after tmux and sshd alone. What it cannot bring it names, with the one command that does.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf 'setup: %s\n' "$*"; }
die() { printf 'setup: %s\n' "$*" >&2; exit 1; }
apt_root() { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; }
apt_get() {
    apt-get install -y -qq "$@" >/dev/null 2>&1 || { apt-get update -qq >/dev/null && apt-get install -y -qq "$@" >/dev/null; }
}

# --- programs: tmux (sessions), OpenSSH's server and client (the tests' box, attaching) --------------------------
missing=()
command -v tmux >/dev/null || missing+=(tmux)
command -v ssh >/dev/null || missing+=(openssh-client)
[ -x /usr/sbin/sshd ] || command -v sshd >/dev/null || missing+=(openssh-server)
if [ ${#missing[@]} -gt 0 ]; then
    if apt_root; then
        say "installing ${missing[*]}"
        DEBIAN_FRONTEND=noninteractive apt_get "${missing[@]}"
    elif command -v apt-get >/dev/null; then
        die "missing ${missing[*]}: run  sudo apt-get install -y ${missing[*]}  and try again"
    else
        die "missing ${missing[*]}: install them with this system's package manager and try again"
    fi
fi
[ "${1:-}" = --programs-only ] && exit 0

# --- Python ------------------------------------------------------------------------------------------------------
python=$(command -v python3) || die "no python3: install Python 3.10 or newer"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
    die "$("$python" --version) is too old: install Python 3.10 or newer and put it first on PATH as python3"

# --- uv: the system's, else one in a private environment ---------------------------------------------------------
if ! uv=$(command -v uv); then
    uv=$PWD/.uv/bin/uv
    if [ ! -x "$uv" ]; then
        say "installing uv into .uv"
        if ! "$python" -m venv .uv >/dev/null 2>&1; then
            rm -rf .uv
            version=$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
            if apt_root; then
                DEBIAN_FRONTEND=noninteractive apt_get "$version"
                "$python" -m venv .uv
            else
                die "python3 cannot make environments: run  sudo apt-get install -y $version  and try again"
            fi
        fi
        .uv/bin/python -m pip install -q uv
    fi
fi

# --- the environment ---------------------------------------------------------------------------------------------
[ -x .venv/bin/python ] || "$uv" venv -q --python "$python" .venv
say "installing grpo-tui with its extras into .venv (some minutes the first time: torch is large)"
"$uv" pip install -q --python .venv/bin/python -e '.[train]' --group dev
say "ready"
