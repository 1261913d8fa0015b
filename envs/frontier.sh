# shellcheck shell=bash
# machine: frontier
# Frontier: ROCm and RCCL's Slingshot plugin are modules, torch is in an environment that the user makes.
# Sourced by ALCF/helpers.sh.
# shellcheck source=python.sh
source "${MEGADS_ROOT}/envs/python.sh"
# shellcheck source=modules.sh
source "${MEGADS_ROOT}/envs/modules.sh"
# The registry's torch is for another vendor's GPUs.
# shellcheck disable=SC2034  # read by envs/python.sh
MEGADS_NO_VENV="machine frontier has no torch of its own; install torch for ROCm and megads in an environment \
(docs/clusters.md) and activate it, or set MEGADS_PYTHON"
# Those for containers bind the host's MPI, libfabric and ROCm libraries.
megads_load_modules PrgEnv-gnu rocm craype-accel-amd-gfx90a rccl-net-plugin &&
  megads_load_for_container olcf-container-tools apptainer-enable-mpi apptainer-enable-gpu && megads_find_python &&
  megads_put_first || return
# MIOpen's cache fails on a home folder that many ranks share.
export MIOPEN_USER_DB_PATH="${MIOPEN_USER_DB_PATH:-/tmp/$(id -un)-miopen}"
export MIOPEN_CUSTOM_CACHE_DIR="${MIOPEN_CUSTOM_CACHE_DIR:-${MIOPEN_USER_DB_PATH}}"
