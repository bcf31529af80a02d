#!/usr/bin/env bash
# Create .venv and install what is missing: uv, tmux, OpenSSH, for tests also Chromium. Rerunning it is safe.
#
#   setup.sh                   development: laptop, engine, test tools
#   setup.sh --box             a GPU box: the engine alone, with the torch build that fits the GPU's driver
#   setup.sh --programs-only   tmux, OpenSSH and Chromium alone
#
# What it cannot install it names, with the command that does.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf 'setup: %s\n' "$*"; }
die() { printf 'setup: %s\n' "$*" >&2; exit 1; }
apt_root() { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; }
apt_get() {
    apt-get install -y -qq "$@" >/dev/null 2>&1 || { apt-get update -qq >/dev/null && apt-get install -y -qq "$@" >/dev/null; }
}

# --- programs: tmux (sessions); for development also OpenSSH's client and server (attach, the tests' box), faketime --
missing=()
command -v tmux >/dev/null || missing+=(tmux)
if [ "${1:-}" != --box ]; then
    command -v ssh >/dev/null || missing+=(openssh-client)
    [ -x /usr/sbin/sshd ] || command -v sshd >/dev/null || missing+=(openssh-server)
    [ "$(uname)" != Linux ] || command -v faketime >/dev/null || missing+=(faketime)
    if apt_root; then # login shells of the tests; without them these tests are skipped
        for shell in fish tcsh zsh; do command -v "$shell" >/dev/null || missing+=("$shell"); done
    fi
fi
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
# A browser for the tests that open a report, which are skipped without one.
if [ "${1:-}" != --box ] && [ "$(uname)" = Linux ] && ! command -v chromium >/dev/null; then
    if apt_root && say "installing chromium" && DEBIAN_FRONTEND=noninteractive apt_get --no-install-recommends chromium; then
        :
    else
        say "no chromium: the tests of reports in a browser are skipped; run  sudo apt-get install -y chromium"
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
if [ "${1:-}" = --box ]; then
    # torch first, from the index that has a build for this driver. --no-config: exclude-newer would hide PyTorch's
    # wheels, which carry no upload date.
    say "installing torch for this machine's driver (several minutes the first time)"
    replace=()
    usable='import sys, torch; sys.exit(not torch.cuda.is_available())'
    if [ -e /dev/nvidia0 ] && ! .venv/bin/python -c "$usable" 2>/dev/null; then
        replace=(--reinstall-package torch)  # an installed build that cannot use the GPU
    fi
    "$uv" pip install -q --python .venv/bin/python --no-config --torch-backend=auto "${replace[@]}" torch ||
        say "PyTorch's index is not reachable: using the default build"
    say "installing the engine"
    "$uv" pip install -q --python .venv/bin/python -e '.[train]'
else
    say "installing grpo-tui with its extras into .venv (several minutes the first time: torch is large)"
    "$uv" pip install -q --python .venv/bin/python -e '.[train]' --group dev
fi
say "ready"
