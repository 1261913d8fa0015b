#!/usr/bin/env bash
# Train a model on this host or inside a job:
#   TP=2 bash launchers/train.sh --preset 7B
# Settings come from the environment and from the options of `megads train`; none are set here.
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@" # sh is not enough
set -euo pipefail
me="${BASH_SOURCE[0]}"
root="$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." && pwd)"
# qsub and sbatch run a copy of this file from a spool folder; look where they were called, and where the file was.
if [[ ! -f "${root}/ALCF/helpers.sh" ]]; then
  here="${PBS_O_WORKDIR:-${SLURM_SUBMIT_DIR:-${PWD}}}"
  was='s/^ *Command=\(.*\)\/launchers\/.*/\1/p'
  [[ -z "${SLURM_JOB_ID:-}" ]] ||
    script="$(scontrol show job "${SLURM_JOB_ID}" 2>/dev/null | sed -n "${was}")" || true
  for root in "${MEGADS_ROOT:-${here}}" "${PWD}" "${script:-}"; do
    [[ ! -f "${root}/ALCF/helpers.sh" ]] || break
  done
  me="${root}/launchers/train.sh"
fi
if [[ ! -f "${root}/ALCF/helpers.sh" ]]; then
  echo "megads: no checkout in ${MEGADS_ROOT:-${here}}; submit from the checkout, or set MEGADS_ROOT to it" >&2
  exit 2
fi
# A PBS batch job starts in the home folder; run folders belong where qsub was called.
if [[ "${PBS_ENVIRONMENT:-}" == PBS_BATCH && -n "${PBS_O_WORKDIR:-}" ]]; then
  cd "${PBS_O_WORKDIR}"
fi
# shellcheck source=../ALCF/helpers.sh
source "${root}/ALCF/helpers.sh"
# shellcheck disable=SC2119  # no extras
megads_setup_env
# Files of the working folder are data here; none of them is to stand in for a Python module.
export PYTHONSAFEPATH=1
if [[ -z "${MEGADS_COMMAND:-}" ]]; then
  printf -v MEGADS_COMMAND ' %q' "${me}" "$@"
  export MEGADS_COMMAND="bash${MEGADS_COMMAND}" # what the log calls this command
fi
exec "${MEGADS_PYTHON}" -m megads train "$@"
