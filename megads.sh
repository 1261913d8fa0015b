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
megads_run "${BASH_SOURCE[0]}" "" "$@"
