# shellcheck shell=bash
# machine: perlmutter
# Perlmutter: the pytorch module has torch for NVIDIA GPUs and NCCL's Slingshot plugin. Sourced by ALCF/helpers.sh.
# shellcheck source=python.sh
source "${MEGADS_ROOT}/envs/python.sh"
# shellcheck source=modules.sh
source "${MEGADS_ROOT}/envs/modules.sh"
megads_load_modules pytorch && megads_find_site_python && megads_find_python && megads_put_first
