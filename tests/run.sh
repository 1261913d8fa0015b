#!/usr/bin/env bash
# The one test command: environment, linters, type checks, tests. Arguments go to pytest:
#   bash tests/run.sh [-k NAME ...]
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@" # sh is not enough
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "${root}"
# shellcheck source=../ALCF/helpers.sh
source "${root}/ALCF/helpers.sh"

# In CI nothing may be skipped because a tool is missing: it is installed, or its tests fail.
if [[ "${CI:-}" == true ]]; then
  export MEGADS_REQUIRE_ALL=1
  missing=()
  command -v mpirun.openmpi >/dev/null || missing+=(openmpi-bin)
  command -v mpiexec.hydra >/dev/null || missing+=(mpich)
  command -v slurmctld >/dev/null || missing+=(slurm-wlm)
  command -v ch-run >/dev/null || missing+=(charliecloud) # tests/e2e/test_container.py
  command -v chromium >/dev/null || missing+=(chromium)
  command -v g++ >/dev/null || missing+=(g++) # tests/simgpu
  if ((${#missing[@]})); then
    sudo=()
    ((EUID == 0)) || sudo=(sudo)
    "${sudo[@]}" apt-get update -q
    DEBIAN_FRONTEND=noninteractive "${sudo[@]}" apt-get install -q -y --no-install-recommends "${missing[@]}"
  fi
fi

megads_setup_env test
lacking="$("${MEGADS_PYTHON}" envs/has_packages.py test 2>&1)" ||
  megads_fail "${MEGADS_PYTHON} lacks ${lacking}; unset MEGADS_PYTHON, or pip install -c envs/constraints.txt -e '.[test]'"

step() {
  echo "== $*"
  "${MEGADS_PYTHON}" -m "$@"
}
# The tools' programs are next to Python, also when its environment is not active.
PATH="$(dirname "$(type -P "${MEGADS_PYTHON}")"):${PATH}"
export PATH
# mypy takes most of the linters' time: it runs in the background, and its output comes last.
types="$(mktemp)"
"${MEGADS_PYTHON}" -m mypy >"${types}" 2>&1 &
mypy=$!
trap 'kill "${mypy}" 2>/dev/null || true; rm -f "${types}"' EXIT
step ruff check .
step ruff format --check .
echo "== lint-imports"
lint-imports
echo "== shellcheck"
shellcheck -x -P SCRIPTDIR ./*.sh launchers/*.sh ALCF/*.sh containers/*.sh envs/*.sh examples/*.sh tests/*.sh .ci/run
echo "== mypy"
wait "${mypy}" && found=0 || found=$?
cat "${types}"
trap - EXIT
rm -f "${types}"
((found == 0)) || exit "${found}"
# Two at a time; tests marked alone wait until nothing else runs (tests/turns.py). 0: in this process, for --pdb.
workers=(-n "${MEGADS_TEST_WORKERS:-2}" --dist loadscope --no-loadscope-reorder)
echo "== pytest ${workers[*]} $*"
exec "${MEGADS_PYTHON}" -m pytest "${workers[@]}" "$@"
