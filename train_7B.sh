#!/usr/bin/env bash
# Train the 7B model. Any setting can be given in the environment:
#   TP=2 NLAYERS=10 bash train_7B.sh
# `bash train_7B.sh --help` lists the options, `--dry-run` shows every setting and starts nothing.
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@" # sh is not enough
set -euo pipefail
me="${BASH_SOURCE[0]}"
root="$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)"
# qsub and sbatch run a copy of this file from a spool folder; look where they were called, and where the file was.
if [[ ! -f "${root}/launchers/train.sh" ]]; then
  here="${PBS_O_WORKDIR:-${SLURM_SUBMIT_DIR:-${PWD}}}"
  [[ -z "${SLURM_JOB_ID:-}" ]] ||
    script="$(scontrol show job "${SLURM_JOB_ID}" 2>/dev/null | sed -n 's/^ *Command=\(.*\)\/.*/\1/p')" || true
  for root in "${MEGADS_ROOT:-${here}}" "${PWD}" "${script:-}"; do
    [[ ! -f "${root}/launchers/train.sh" ]] || break
  done
  me="${root}/train_7B.sh"
fi
if [[ ! -f "${root}/launchers/train.sh" ]]; then
  echo "megads: no checkout in ${MEGADS_ROOT:-${here}}; submit from the checkout, or set MEGADS_ROOT to it" >&2
  exit 2
fi
printf -v MEGADS_COMMAND ' %q' "${me}" "$@"
export MEGADS_COMMAND="bash${MEGADS_COMMAND}" # what the log calls this command
exec bash "${root}/launchers/train.sh" --preset 7B "$@"
