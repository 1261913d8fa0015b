# shellcheck shell=bash
# Find a Python with everything that megads needs, or make one. Sourced by envs/<machine>.sh.
#
# In order: MEGADS_PYTHON as it is; the active environment; the site's Python, where modules gave one;
# <checkout>/.venv made earlier; python3 on PATH; a new .venv. The middle ones count only when they
# have the packages of setup.cfg (and of the extras in MEGADS_EXTRAS). On a machine with a Python of
# the site the new one is .venv-<machine> on top of it, and keeps its torch.

declare -F megads_find_python >/dev/null || megads_find_python() {
  local active stamp="" base="${MEGADS_SITE_PYTHON:-}" venv="${MEGADS_ROOT}/.venv${MEGADS_SITE_PYTHON:+-${MACHINE}}"
  if [[ -n "${MEGADS_PYTHON:-}" ]]; then
    type -P "${MEGADS_PYTHON}" >/dev/null ||
      megads_fail "MEGADS_PYTHON=${MEGADS_PYTHON} is not an executable; give the path of a Python 3.10 or later"
    return
  fi
  active="${MEGADS_ACTIVE:-${VIRTUAL_ENV:-${CONDA_PREFIX:-}}}"
  if [[ -n "${active}" && "${active}" != "${venv}" ]] && megads_has_packages "${active}/bin/python"; then
    MEGADS_PYTHON="${active}/bin/python"
    return
  fi
  if [[ -n "${base}" ]] && megads_has_packages "${base}"; then
    MEGADS_PYTHON="${base}"
    return
  fi
  megads_stamp
  if [[ -f "${stamp}" && -x "${venv}/bin/python" ]]; then
    MEGADS_PYTHON="${venv}/bin/python"
    return
  fi
  [[ -n "${base}" ]] || base="$(type -P python3 || true)"
  if [[ -n "${base}" ]] && megads_has_packages "${base}"; then
    MEGADS_PYTHON="${base}"
    return
  fi
  if [[ -n "${MEGADS_NO_VENV:-}" ]]; then
    megads_fail "${MEGADS_NO_VENV}"
    return
  fi
  megads_make_venv || return
  MEGADS_PYTHON="${venv}/bin/python"
}

# Succeed when Python $1 has the packages of setup.cfg, judged by their metadata; nothing is imported.
declare -F megads_has_packages >/dev/null || megads_has_packages() {
  local without=""
  # Ranks in a container have the image's torch.
  ! megads_in_container || without="--no-torch"
  # shellcheck disable=SC2086  # extras are words
  [[ -x "$1" ]] && "$1" "${MEGADS_ROOT}/envs/has_packages.py" ${MEGADS_EXTRAS:-} ${without} >/dev/null 2>&1
}

# Set stamp to the file whose presence says that the caller's venv was finished for these package lists.
declare -F megads_stamp >/dev/null || megads_stamp() {
  local sum
  sum="$(cat "${MEGADS_ROOT}/envs/constraints.txt" "${MEGADS_ROOT}/setup.cfg" - <<<"${MEGADS_SITE_PYTHON:-}" | cksum)"
  stamp="${venv}/.megads-${sum// /-}${MEGADS_EXTRAS:+-${MEGADS_EXTRAS// /-}}"
}

# Make the caller's venv, or finish one that a killed shell left half made. One shell at a time.
declare -F megads_make_venv >/dev/null || megads_make_venv() {
  local python stamp="" log pins="${MEGADS_ROOT}/envs/constraints.txt"
  if [[ "${MEGADS_ROOT}" == */megads/shipped ]]; then
    megads_fail "no Python here has all packages of megads, which was installed without a checkout; \
activate the environment that it is in, or set MEGADS_PYTHON"
    return
  fi
  megads_base_python || return
  if ! mkdir -p "${venv}" 2>/dev/null; then
    megads_fail "cannot make ${venv}; use a checkout you can write to, or set MEGADS_PYTHON"
    return
  fi
  log="${venv}/install.log"
  megads_stamp
  (
    # Without flock, or on a file system without locks, two shells may do the same work twice.
    if command -v flock >/dev/null && ! flock -n 9; then
      echo "megads: another shell is making ${venv}; waiting for it" >&2
      flock 9 || true
    fi
    [[ ! -f "${stamp}" || ! -x "${venv}/bin/python" ]] || exit 0
    if [[ -f "${venv}/.megads-making" || ! -x "${venv}/bin/python" ]]; then
      # An install that was killed leaves packages without their files.
      find "${venv}" -mindepth 1 -maxdepth 1 ! -name .lock -exec rm -rf {} +
    fi
    : >"${venv}/.megads-making"
    rm -f "${venv}"/.megads-[0-9]*
    echo "megads: making ${venv} with $("${python}" -V 2>&1); once, a few minutes (log: ${log})" >&2
    "${python}" -m venv "${venv}" ${MEGADS_SITE_PYTHON:+--system-site-packages} >"${log}" 2>&1 ||
      { megads_install_failed "${log}"; exit 2; }
    if [[ -n "${MEGADS_SITE_PYTHON:-}" ]]; then
      # What the site built for its devices stays as it is.
      pins="${venv}/site.txt"
      "${python}" "${MEGADS_ROOT}/envs/has_packages.py" --found >"${pins}"
    fi
    megads_install_cpu_torch "${pins}"
    "${venv}/bin/python" -m pip install --disable-pip-version-check --no-input --progress-bar off -c "${pins}" \
      -e "${MEGADS_ROOT}${MEGADS_EXTRAS:+[${MEGADS_EXTRAS// /,}]}" >>"${log}" 2>&1 9>&- &
    megads_show_progress "$!" "${log}" || { megads_install_failed "${log}"; exit 2; }
    : >"${stamp}"
    # With the extras in, the plain set is in as well.
    local MEGADS_EXTRAS=""
    megads_stamp
    : >"${stamp}"
    rm -f "${venv}/.megads-making"
  ) 9>"${venv}/.lock"
}

# Install the CPU build of torch, as constrained by file $1, into the caller's venv: on a host without accelerators where
# uv is on PATH, which knows the index that has it. Else pip takes what its own index has: for Linux usually NVIDIA's build,
# which is 2 GB larger.
declare -F megads_install_cpu_torch >/dev/null || megads_install_cpu_torch() {
  [[ -z "${MEGADS_SITE_PYTHON:-}${PIP_FIND_LINKS:-}${PIP_EXTRA_INDEX_URL:-}" ]] && type -P uv >/dev/null || return 0
  ! megads_has_accelerator || return 0
  echo "megads: no accelerator here: installing the CPU build of torch" >&2
  uv pip install --python "${venv}/bin/python" --torch-backend cpu -c "$1" torch >>"${log}" 2>&1 9>&- ||
    echo "megads: the CPU build of torch cannot be installed; taking the one that pip finds" >&2
}

# Wait for process $1 and show what pip, writing to $2, is at: one line for each phase, and one after
# every $3 (15) seconds without.
declare -F megads_show_progress >/dev/null || megads_show_progress() {
  local phase last="" count start="${SECONDS}" shown="${SECONDS}"
  # shellcheck disable=SC2064  # the process id of now
  trap "kill $1 2>/dev/null; exit 130" INT TERM HUP
  while kill -0 "$1" 2>/dev/null; do
    phase="$(sed -n 's/^ *\(Collecting\|Downloading\|Building\|Installing\) .*/\1/p' "$2" | tail -n 1)"
    case "${phase}" in
      Collecting | Downloading) phase="collecting packages" ;;
      Building) phase="building packages" ;;
      Installing)
        count="$(sed -n 's/^ *Installing collected packages: //p' "$2" | tail -n 1 | tr ',' '\n' | wc -l)"
        phase="installing packages (${count}), a few minutes on a parallel file system"
        # "Installing build dependencies" is of a package that is still collected.
        grep -q '^ *Installing collected packages' "$2" || phase="collecting packages"
        ;;
      *) phase="starting pip" ;;
    esac
    if [[ "${phase}" != "${last}" ]]; then
      echo "megads: ${phase} ... ($((SECONDS - start)) s)" >&2
      last="${phase}" shown="${SECONDS}"
    elif ((SECONDS - shown >= ${3:-15})); then
      echo "megads: still ${phase%%,*} ... ($((SECONDS - start)) s)" >&2
      shown="${SECONDS}"
    fi
    sleep 0.2
  done
  wait "$1" || return
  echo "megads: packages installed in $((SECONDS - start)) s" >&2
}

# Show the end of an install's log, then what went wrong as one line.
declare -F megads_install_failed >/dev/null || megads_install_failed() {
  local why="see the lines above and ${1}"
  tail -n 15 "$1" >&2
  if grep -qi 'no space left\|disk quota' "$1"; then
    why="the disk is full; free 3 GB (with GPU packages 8 GB), or set MEGADS_PYTHON"
  elif grep -qi 'ensurepip is not available\|no module named.*\(venv\|ensurepip\)' "$1"; then
    why="${python} has no venv module; install it (apt-get install python3-venv), or set MEGADS_PYTHON"
  elif grep -qi 'name resolution\|NewConnectionError\|ConnectTimeout\|network is unreachable\|name or service' "$1"; then
    why="the package registry cannot be reached; run once where there is a network, or set MEGADS_PYTHON"
  fi
  megads_fail "could not make ${1%/*}: ${why}"
}

# Set python to the site's Python, else to the first on PATH that is new enough.
declare -F megads_base_python >/dev/null || megads_base_python() {
  local name found="none"
  if [[ -n "${MEGADS_SITE_PYTHON:-}" ]]; then
    python="${MEGADS_SITE_PYTHON}"
    "${python}" "${MEGADS_ROOT}/envs/has_packages.py" --found | grep -q '^torch==' ||
      megads_fail "machine ${MACHINE}: ${python} of its modules has no torch; set MEGADS_PYTHON to a Python that has"
    return
  fi
  for name in python3 python3.13 python3.12 python3.11 python3.10; do
    python="$(type -P "${name}" || true)"
    if [[ -n "${python}" ]]; then
      "${python}" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null && return
      [[ "${found}" != none ]] || found="$("${python}" -V 2>&1 || true) (${python})"
    fi
  done
  megads_fail "megads needs Python 3.10 or later; found ${found}; put one on PATH or set MEGADS_PYTHON"
}
