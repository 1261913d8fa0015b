# shellcheck shell=bash
# machine: cpu
# A host without accelerator and scheduler. Sourced by ALCF/helpers.sh.
# shellcheck source=python.sh
source "${MEGADS_ROOT}/envs/python.sh"
megads_find_python
