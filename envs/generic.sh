# shellcheck shell=bash
# machine: generic
# A host with accelerators and no scheduler. Sourced by ALCF/helpers.sh.
# shellcheck source=python.sh
source "${MEGADS_ROOT}/envs/python.sh"
megads_find_python
