# shellcheck shell=bash
# Load a site's modules and make sure that they did something. Sourced by envs/<machine>.sh.
#
# With MEGADS_PYTHON given nothing here runs: that Python is used in the environment as it is.

# Load modules in order. A word is a module's name, use:FOLDER for `module use`, or conda:NAME for
# `conda activate`. Each load is checked: outside a login shell `module` may be missing, and with
# no MODULEPATH it silently does nothing.
declare -F megads_load_modules >/dev/null || megads_load_modules() {
  local word
  [[ -z "${MEGADS_PYTHON:-}" ]] || return 0
  # What the user had active before: loading a module may end it.
  MEGADS_ACTIVE="${MEGADS_ACTIVE:-${VIRTUAL_ENV:-${CONDA_PREFIX:-}}}"
  megads_find_module || return 2
  for word; do
    case "${word}" in
      use:*) megads_loose module use "${word#use:}" || true ;;
      conda:*)
        megads_loose conda activate "${word#conda:}" || true
        if [[ -z "${CONDA_PREFIX:-}" ]]; then
          megads_fail "machine ${MACHINE}: \`conda activate ${word#conda:}\` activated nothing; ${megads_instead}"
          return 2
        fi
        ;;
      *)
        megads_loose module load "${word}" || true
        if [[ ":${LOADEDMODULES:-}" != *":${word}"?(/*|:*) ]]; then
          megads_fail "machine ${MACHINE}: \`module load ${word}\` loaded nothing" \
            "(MODULEPATH=${MODULEPATH:-}); ${megads_instead}"
          return 2
        fi
        ;;
    esac
  done
  hash -r
}
megads_instead="try it in a login shell (bash -l), or set MEGADS_PYTHON to a Python that has torch"

# Load modules as megads_load_modules does where ranks run in a container; else none.
declare -F megads_load_for_container >/dev/null || megads_load_for_container() {
  ! megads_in_container || megads_load_modules "$@"
}

# Make sure there is a `module` command, from the start-up file of a login shell where it is missing.
declare -F megads_find_module >/dev/null || megads_find_module() {
  local file
  for file in "" "${LMOD_PKG:-/none}/init/bash" "${MODULESHOME:-/none}/init/bash" /etc/profile.d/modules.sh \
    /etc/profile.d/lmod.sh /usr/share/lmod/lmod/init/bash /opt/cray/pe/lmod/lmod/init/bash; do
    # shellcheck source=/dev/null
    [[ -z "${file}" || ! -r "${file}" ]] || megads_loose source "${file}"
    ! type module >/dev/null 2>&1 || return 0
  done
  megads_fail "machine ${MACHINE}: this shell has no \`module\` command; ${megads_instead}"
}

# Run a command of the site, which need not be written for `set -eu`. What it prints is no output of ours.
declare -F megads_loose >/dev/null || megads_loose() {
  local flags="$-" status=0
  set +eu
  "$@" >&2 || status=$?
  [[ "${flags}" != *e* ]] || set -e
  [[ "${flags}" != *u* ]] || set -u
  return "${status}"
}

# Set MEGADS_SITE_PYTHON to the Python that the modules gave, having seen that it is theirs.
declare -F megads_find_site_python >/dev/null || megads_find_site_python() {
  local meant="" found
  [[ -z "${MEGADS_PYTHON:-}" ]] || return 0
  found="$(type -P python3 || true)"
  # A conda environment that was active before need not be the modules'.
  [[ "${CONDA_PREFIX:-}" == "${MEGADS_ACTIVE:-}" ]] || meant="${CONDA_PREFIX:+${CONDA_PREFIX}/bin/python3}"
  if [[ "${found}" == "${MEGADS_ACTIVE:-/none}/bin/python3" && "${found}" != "${meant}" && -x "${meant}" ]]; then
    found="${meant}" # the user's environment comes first on PATH, and is looked at first
  fi
  if [[ -n "${meant}" && "${found}" != "${meant}" ]]; then
    megads_fail "machine ${MACHINE}: the modules mean ${meant} and python3 is ${found:-not there}; ${megads_instead}"
    return 2
  fi
  case "${found}" in
    "" | /bin/python3 | /usr/bin/python3)
      megads_fail "machine ${MACHINE}: the modules gave no Python, python3 is ${found:-not there}; ${megads_instead}"
      return 2
      ;;
  esac
  # shellcheck disable=SC2034  # read by envs/python.sh
  MEGADS_SITE_PYTHON="${found}"
}

# Put folder $2 first in the list of folders called $1. Empty entries go: in LD_LIBRARY_PATH they
# mean the working folder.
declare -F megads_prepend >/dev/null || megads_prepend() {
  local entry list="$2" old entries
  IFS=: read -r -a entries <<<"${!1-}"
  for entry in ${entries[@]+"${entries[@]}"}; do
    [[ -z "${entry}" || "${entry}" == "$2" ]] || list+=":${entry}"
  done
  old="$1"
  export "${old}=${list}"
}

# A user's environment on top of the site's Python: its programs and libraries come before the site's.
declare -F megads_put_first >/dev/null || megads_put_first() {
  local prefix="${MEGADS_PYTHON%/bin/*}"
  [[ "${prefix}" != "${MEGADS_PYTHON}" && "${MEGADS_PYTHON}" != "${MEGADS_SITE_PYTHON:-}" ]] || return 0
  megads_prepend PATH "${prefix}/bin"
  # With an older libsycl of the site before that of the environment torch does not load.
  ! compgen -G "${prefix}/lib/*.so*" >/dev/null || megads_prepend LD_LIBRARY_PATH "${prefix}/lib"
}
