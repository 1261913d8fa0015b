#!/usr/bin/env bash
# Build an image of this checkout: bash containers/build.sh VENDOR [BUILDER] [WORDS for the builder...]
#
#   VENDOR   a row of containers/bases.txt: nvidia, amd, intel, cpu
#   BUILDER  podman (default), docker, podman-hpc: image megads:VENDOR; apptainer, singularity: file megads-VENDOR.sif
#   BASE, TORCH in the environment override the row; PIP_ARGS goes to pip inside; BOOTSTRAP=localimage builds from a file
#
# The checkout itself is bound when ranks start, so an image is rebuilt when setup.cfg changes, not for every commit.
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"

fail() {
  echo "containers/build.sh: $*" >&2
  exit 2
}

vendor="${1:-}" builder="${2:-podman}"
known="$(awk '!/^#/ && NF {print $1}' "${root}/containers/bases.txt" | paste -sd' ')"
row="$(awk -v vendor="${vendor}" '!/^#/ && $1 == vendor {print $2, $3}' "${root}/containers/bases.txt")"
[[ -n "${row}" ]] || fail "no vendor '${vendor}' in containers/bases.txt; use one of ${known}"
case "${builder}" in
  podman | docker | podman-hpc | apptainer | singularity) ;;
  *) fail "no builder '${builder}'; use podman, docker, podman-hpc, apptainer or singularity" ;;
esac
type -P "${builder}" >/dev/null || fail "${builder} is not on PATH; install it or load its module, or name another builder"
base="${BASE:-${row% *}}" torch="${TORCH:-${row#* }}"

context="$(mktemp -d)"
trap 'rm -rf "${context}"' EXIT
mkdir "${context}/envs"
cp "${root}/containers/install.sh" "${root}/envs/has_packages.py" "${context}/envs/"
cp "${root}/setup.cfg" "${context}/"
"${MEGADS_PYTHON:-python3}" -m pip wheel --quiet --no-deps --no-input -w "${context}" "${root}"

case "${builder}" in
  apptainer | singularity)
    "${builder}" build "${@:3}" --build-arg "BOOTSTRAP=${BOOTSTRAP:-docker}" --build-arg "BASE=${base}" \
      --build-arg "TORCH=${torch}" --build-arg "CONTEXT=${context}" "megads-${vendor}.sif" "${root}/containers/megads.def"
    echo "built megads-${vendor}.sif; CONTAINER=megads-${vendor}.sif megads train ..."
    ;;
  *)
    "${builder}" build "${@:3}" -f "${root}/containers/Containerfile" --build-arg "BASE=${base}" \
      --build-arg "TORCH=${torch}" --build-arg "PIP_ARGS=${PIP_ARGS:-}" -t "megads:${vendor}" "${context}"
    echo "built megads:${vendor}; CONTAINER=megads:${vendor} megads train ..."
    ;;
esac
