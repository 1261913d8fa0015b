# shellcheck shell=bash
# Find the machine and a Python that can train on it. No training settings live here.
#
#   source ALCF/helpers.sh && megads_setup_env
#
# Sets MEGADS_ROOT, MEGADS_PYTHON and PYTHONPATH, and MACHINE for this shell; each is used as it is
# when given. A MACHINE that was found is not exported: Python finds the same one, and so knows
# what was the user's choice.
# A function that exists already is kept, so a site or a user can replace any of them. Nothing here
# ends the shell: what fails says one line and returns 2.
if [ -z "${BASH_VERSION:-}" ]; then
  echo "megads: ALCF/helpers.sh needs bash; start one (bash -l) and source it there" >&2
  return 2
fi
MEGADS_ROOT="${MEGADS_ROOT:-$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)}"
export MEGADS_ROOT

# Say one line and fail, as a wrong input does everywhere in megads. A script under `set -e` ends with it.
declare -F megads_fail >/dev/null || megads_fail() {
  echo "megads: $*" >&2
  return 2
}

# Print this host's machine.
declare -F megads_machine >/dev/null || megads_machine() {
  local machine="${MACHINE:-}"
  [[ -n "${machine}" ]] || megads_find_machine
  echo "${machine}"
}

# Set machine to the name of host $1's machine: by the first row of envs/machines.txt whose
# conditions hold, else by what is in it. megads/cluster/machine.py has the same rules.
declare -F megads_find_machine >/dev/null || megads_find_machine() {
  # HOSTNAME may be the submitting host's, handed on by `qsub -V`.
  local line words last condition host="${1:-$(uname -n)}" top="${2:-}"
  while read -r line || [[ -n "${line}" ]]; do
    read -r -a words <<<"${line%%#*}"
    last=$((${#words[@]} - 1))
    ((last > 0)) || continue
    for condition in "${words[@]:0:last}"; do
      megads_holds "${condition}" || continue 2
    done
    machine="${words[last]}"
    return
  done <"${MEGADS_ROOT}/envs/machines.txt"
  if ! megads_has_accelerator; then
    machine=cpu
  elif [[ -n "${PBS_JOBID:-}" ]]; then
    machine=pbs
  elif [[ -n "${SLURM_JOB_ID:-}" ]]; then
    machine=slurm
  else
    machine=generic
  fi
}

# Succeed when condition $1 of envs/machines.txt holds; host and top are the caller's.
# shellcheck disable=SC2053,SC2254  # patterns must stay unquoted to match as globs
declare -F megads_holds >/dev/null || megads_holds() {
  local name="${1%%=*}"
  case "$1" in
    /*) [[ -e "${top}$1" ]] ;;
    *=*) [[ -n "${!name-}" && "${!name-}" == ${1#*=} ]] ;;
    *) [[ "${host}" == $1 ]] ;;
  esac
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

# Succeed where ranks are to run in a container: by CONTAINER, or by a word of the command.
declare -F megads_in_container >/dev/null || megads_in_container() {
  [[ -v CONTAINER && -n "${CONTAINER}" ]] ||
    [[ "${MEGADS_COMMAND:-}" == *" --container"* || "${MEGADS_COMMAND:-}" == *" launch.container="* ]]
}

# Prepare this shell to run megads. Arguments are extras of setup.cfg that are needed too.
# shellcheck disable=SC2120
declare -F megads_setup_env >/dev/null || megads_setup_env() {
  local machine known given="${MEGADS_PYTHON:-}"
  if [[ -z "${MACHINE:-}" ]]; then
    megads_find_machine
    MACHINE="${machine}"
  fi
  if [[ ! -f "${MEGADS_ROOT}/envs/${MACHINE}.sh" ]]; then
    known="$(sed -n 's/^# machine: //p' "${MEGADS_ROOT}"/envs/*.sh | sort | paste -sd ' ')"
    megads_fail "MACHINE=${MACHINE} is not known; known machines: ${known// /, }"
    return 2
  fi
  # shellcheck disable=SC2034  # read by envs/python.sh
  MEGADS_EXTRAS="$*"
  # shellcheck source=/dev/null
  source "${MEGADS_ROOT}/envs/${MACHINE}.sh" || return
  export MEGADS_PYTHON
  # A job is to load this machine's modules again, unless the user chose the Python.
  [[ -n "${given}" ]] || export MEGADS_FOUND_PYTHON="${MEGADS_PYTHON}"
  case ":${PYTHONPATH:-}:" in
    *":${MEGADS_ROOT}:"*) ;;
    *) export PYTHONPATH="${MEGADS_ROOT}${PYTHONPATH:+:${PYTHONPATH}}" ;;
  esac
}

# Become `megads $2 WORD...` in the environment that megads_setup_env makes, called by script $1: megads_run $1 $2 WORD...
declare -F megads_run >/dev/null || megads_run() {
  local script="$1" before="$2"
  shift 2
  if [[ -z "${MEGADS_COMMAND:-}" ]]; then
    printf -v MEGADS_COMMAND ' %q' "${script}" "$@"
    export MEGADS_COMMAND="bash${MEGADS_COMMAND}" # what the log calls this command
  fi
  # shellcheck disable=SC2119  # no extras
  megads_setup_env || exit
  # Files of the working folder are data here; none of them is to stand in for a Python module.
  export PYTHONSAFEPATH=1
  # shellcheck disable=SC2086  # the caller's own words
  exec "${MEGADS_PYTHON}" -m megads ${before} "$@"
}

# Train: megads_train SCRIPT OPTIONS WORD...
declare -F megads_train >/dev/null || megads_train() {
  # A PBS batch job starts in the home folder; run folders belong where qsub was called.
  [[ "${PBS_ENVIRONMENT:-}" != PBS_BATCH || -z "${PBS_O_WORKDIR:-}" ]] || cd "${PBS_O_WORKDIR}" || exit
  megads_run "$1" "train $2" "${@:3}"
}

# Start a command on every rank of this job: megads_launch [-n N] [options] -- COMMAND ...
# shellcheck disable=SC2119
declare -F megads_launch >/dev/null || megads_launch() {
  [[ -n "${MEGADS_PYTHON:-}" ]] || megads_setup_env || return
  "${MEGADS_PYTHON}" -m megads launch "$@"
}

# Names that users of ezpz know.
declare -F ezpz_get_machine_name >/dev/null || ezpz_get_machine_name() { megads_machine; }
declare -F ezpz_setup_env >/dev/null || ezpz_setup_env() { megads_setup_env ""; }
declare -F ezpz_setup_python >/dev/null || ezpz_setup_python() { megads_setup_env ""; }
declare -F ezpz_launch >/dev/null || ezpz_launch() { megads_launch "$@"; }
type launch >/dev/null 2>&1 || launch() { megads_launch "$@"; }
