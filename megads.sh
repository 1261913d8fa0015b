#!/usr/bin/env bash
# The `megads` command in the environment that train_7B.sh makes, from any folder:
#   ./megads.sh runs
# sh is not enough: bash takes over.
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@"
set -euo pipefail
root="$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)"
if [[ ! -f "${root}/ALCF/helpers.sh" ]]; then
  echo "megads: no checkout in ${root}; call megads.sh in the checkout, or a symbolic link to it" >&2
  exit 2
fi
# shellcheck source=ALCF/helpers.sh
source "${root}/ALCF/helpers.sh"
# shellcheck disable=SC2119  # no extras
megads_setup_env
# Files of the working folder are data here; none of them is to stand in for a Python module.
export PYTHONSAFEPATH=1
if [[ -z "${MEGADS_COMMAND:-}" ]]; then
  printf -v MEGADS_COMMAND ' %q' "${BASH_SOURCE[0]}" "$@"
  export MEGADS_COMMAND="bash${MEGADS_COMMAND}" # what the log calls this command
fi
exec "${MEGADS_PYTHON}" -m megads "$@"
