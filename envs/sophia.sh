# shellcheck shell=bash
# machine: sophia
# Sophia: the conda module has torch for NVIDIA GPUs in its base environment. Sourced by ALCF/helpers.sh.
# shellcheck source=python.sh
source "${MEGADS_ROOT}/envs/python.sh"
# shellcheck source=modules.sh
source "${MEGADS_ROOT}/envs/modules.sh"
megads_load_modules use:/soft/modulefiles conda conda:base && megads_find_site_python &&
  megads_find_python && megads_put_first
