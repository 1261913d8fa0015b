# shellcheck shell=bash
# machine: sunspot
# Sunspot: the frameworks module has torch for Intel GPUs in a conda environment. Sourced by ALCF/helpers.sh.
# shellcheck source=python.sh
source "${MEGADS_ROOT}/envs/python.sh"
# shellcheck source=modules.sh
source "${MEGADS_ROOT}/envs/modules.sh"
megads_load_modules frameworks && megads_load_for_container apptainer fuse-overlayfs && megads_find_site_python &&
  megads_find_python && megads_put_first
