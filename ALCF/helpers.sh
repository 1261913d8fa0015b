# shellcheck shell=bash
# Find the machine and a Python that can train on it. No training settings live here.
#
#   source ALCF/helpers.sh && megads_setup_env
#
# Sets MEGADS_ROOT, MEGADS_PYTHON and PYTHONPATH, and MACHINE for this shell; each is used as it is
# when given. A MACHINE that was found is not exported: Python finds the same one, and so knows
# what was the user's choice.
# A function that exists already is kept, so a site or a user can replace any of them.
MEGADS_ROOT="${MEGADS_ROOT:-$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)}"
export MEGADS_ROOT

# Say one line and end the script, as a wrong input does everywhere in megads.
declare -F megads_fail >/dev/null || megads_fail() {
  echo "megads: $*" >&2
  exit 2
}

# Set machine to the name of this host's machine: by the first pattern of envs/machines.txt
# that matches, else by what is in it. megads/cluster/machine.py has the same rules.
declare -F megads_find_machine >/dev/null || megads_find_machine() {
  # HOSTNAME may be the submitting host's, handed on by `qsub -V`.
  local pattern name rest host="${1:-$(uname -n)}"
  while read -r pattern name rest || [[ -n "${pattern}" ]]; do
    [[ -z "${pattern}" || "${pattern}" == "#"* ]] && continue
    # shellcheck disable=SC2053  # the pattern must stay unquoted to match as a glob
    if [[ "${host}" == ${pattern} ]]; then
      machine="${name}"
      return
    fi
  done <"${MEGADS_ROOT}/envs/machines.txt"
  if megads_has_accelerator; then machine=generic; else machine=cpu; fi
}

# Succeed when a training accelerator is visible; reads the kernel's tables, no driver.
declare -F megads_has_accelerator >/dev/null || megads_has_accelerator() {
  local dev="${1:-/dev}" sys="${2:-/sys}" card
  [[ "${MEGADS_DEVICE:-}" != cpu ]] || return 1
  if compgen -G "${dev}/nvidia[0-9]*" >/dev/null && megads_shows_some CUDA_VISIBLE_DEVICES; then
    return 0
  fi
  if [[ -e "${dev}/kfd" ]] &&
    grep -qs '^simd_count [1-9]' "${sys}"/class/kfd/kfd/topology/nodes/*/properties &&
    megads_shows_some ROCR_VISIBLE_DEVICES && megads_shows_some HIP_VISIBLE_DEVICES &&
    megads_shows_some CUDA_VISIBLE_DEVICES; then
    return 0
  fi
  for card in "${sys}"/class/drm/card*/device; do
    [[ -r "${card}/vendor" && -r "${card}/device" && "$(<"${card}/vendor")" == 0x8086 ]] || continue
    case "$(<"${card}/device")" in 0x0bd? | 0x0b6? | 0x0be? | 0x56c?) return 0 ;; esac
  done
  return 1
}

# Succeed unless the variable called $1 hides every device: set to nothing, or to a list that begins with -1.
declare -F megads_shows_some >/dev/null || megads_shows_some() {
  [[ ! -v "$1" ]] || [[ -n "${!1//[ ,]/}" && "${!1}" != -1* ]]
}

# Prepare this shell to run megads. Arguments are extras of setup.cfg that are needed too.
declare -F megads_setup_env >/dev/null || megads_setup_env() {
  local machine known
  if [[ -z "${MACHINE:-}" ]]; then
    megads_find_machine
    MACHINE="${machine}"
  fi
  if [[ ! -f "${MEGADS_ROOT}/envs/${MACHINE}.sh" ]]; then
    known="$(sed -n 's/^# machine: //p' "${MEGADS_ROOT}"/envs/*.sh | sort | paste -sd ' ')"
    megads_fail "MACHINE=${MACHINE} is not known; known machines: ${known// /, }"
  fi
  # shellcheck disable=SC2034  # read by envs/python.sh
  MEGADS_EXTRAS="$*"
  # shellcheck source=/dev/null
  source "${MEGADS_ROOT}/envs/${MACHINE}.sh"
  export MEGADS_PYTHON
  case ":${PYTHONPATH:-}:" in
    *":${MEGADS_ROOT}:"*) ;;
    *) export PYTHONPATH="${MEGADS_ROOT}${PYTHONPATH:+:${PYTHONPATH}}" ;;
  esac
}
