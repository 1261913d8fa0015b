#!/usr/bin/env bash
# Train the 7B model. Any setting can be given in the environment:
#   TP=2 NLAYERS=10 bash train_7B.sh
# `bash train_7B.sh --help` lists the options, `--dry-run` shows every setting and starts nothing.
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@" # sh is not enough
set -euo pipefail
me="${BASH_SOURCE[0]}"
root="$(dirname "$(readlink -f "${me}")")"
# qsub and sbatch run a copy of this file from a spool folder; look where they were called, and where the file was.
if [[ ! -f "${root}/ALCF/helpers.sh" ]]; then
  script="" here="${MEGADS_ROOT:-${PBS_O_WORKDIR:-${SLURM_SUBMIT_DIR:-${PWD}}}}"
  [[ -z "${SLURM_JOB_ID:-}" ]] ||
    script="$(scontrol show job "${SLURM_JOB_ID}" 2>/dev/null | sed -n 's/^ *Command=//p')" || true
  for root in "${here}" "${PWD}" "${script%/train_7B.sh*}"; do
    [[ ! -f "${root}/ALCF/helpers.sh" ]] || break
  done
  me="${root}/train_7B.sh"
fi
if [[ ! -f "${root}/ALCF/helpers.sh" ]]; then
  echo "megads: no checkout in ${here}; submit from the checkout, or set MEGADS_ROOT to it" >&2
  exit 2
fi
# shellcheck source=ALCF/helpers.sh
source "${root}/ALCF/helpers.sh"
MEGADS_COMMAND="" megads_train "${me}" "--preset 7B" "$@"
