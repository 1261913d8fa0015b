#!/bin/sh
# Install megads in an image, beside the torch that its base has: install.sh WHEEL TORCH
#
#   WHEEL  of megads
#   TORCH  base: the base image has a torch for its devices, which stays as it is; cpu: the registry's build for CPUs
#
# Runs as root while an image is built, under Docker, Podman, Apptainer or in a plain chroot. PIP_ARGS: more for pip.
set -eu
wheel="$1" torch="$2" root="$(dirname "$0")"

# What the ranks' launchers may look for, where the base is a bare system.
if ! command -v python3 >/dev/null || ! python3 -m venv --help >/dev/null 2>&1; then
  apt-get update
  DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends python3 python3-pip python3-venv
  rm -rf /var/lib/apt/lists/*
fi

pins="$(mktemp)"
if [ "${torch}" = base ]; then
  # Every package of megads that the vendor built for its devices is pinned to what is there.
  python3 "${root}/has_packages.py" --found >"${pins}"
  if ! grep -q '^torch==' "${pins}"; then
    echo "install.sh: the base image has no torch; use TORCH=cpu, or a base with torch" >&2
    exit 2
  fi
  python3 -m venv --system-site-packages /opt/megads
else
  python3 -m venv /opt/megads
fi
# shellcheck disable=SC2086  # words
/opt/megads/bin/python -m pip install --no-cache-dir --no-input -c "${pins}" ${PIP_ARGS:-} "${wheel}"
rm -f "${pins}"
if [ "${torch}" = cpu ] && ! /opt/megads/bin/python -c 'import sys, torch; sys.exit(torch.version.cuda is not None)'; then
  echo "install.sh: this torch is built for CUDA, which makes the image some GB larger; PIP_ARGS can name the CPU build" >&2
fi

# Folders at which sites bind theirs: runtimes that mount the image read-only make none.
for folder in /eagle /flare /lus /lustre /global /pscratch /scratch /soft /work /projects /ccs /host; do
  mkdir -p "${folder}"
done
/opt/megads/bin/python -m megads --version
