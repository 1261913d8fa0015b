#!/usr/bin/env bash
# Train a model on this host or inside a job:
#   TP=2 bash launchers/train.sh --preset 7B
# Settings come from the environment and from the options of `megads train`; none are set here.
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@" # sh is not enough
set -euo pipefail
me="${BASH_SOURCE[0]}"
root="$(cd "$(dirname "$(readlink -f "${me}")")/.." && pwd)"
# qsub and sbatch run a copy of this file from a spool folder; look where they were called, and where the file was.
if [[ ! -f "${root}/ALCF/helpers.sh" ]]; then
  script="" here="${MEGADS_ROOT:-${PBS_O_WORKDIR:-${SLURM_SUBMIT_DIR:-${PWD}}}}"
  [[ -z "${SLURM_JOB_ID:-}" ]] ||
    script="$(scontrol show job "${SLURM_JOB_ID}" 2>/dev/null | sed -n 's/^ *Command=//p')" || true
  for root in "${here}" "${PWD}" "${script%/launchers/train.sh*}"; do
    [[ ! -f "${root}/ALCF/helpers.sh" ]] || break
  done
  me="${root}/launchers/train.sh"
fi
if [[ ! -f "${root}/ALCF/helpers.sh" ]]; then
  echo "megads: no checkout in ${here}; submit from the checkout, or set MEGADS_ROOT to it" >&2
  exit 2
fi
# shellcheck source=../ALCF/helpers.sh
source "${root}/ALCF/helpers.sh"
megads_train "${me}" "" "$@"
