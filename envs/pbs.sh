# shellcheck shell=bash
# machine: pbs
# A host of a cluster with PBS that has no file of its own. The user's modules are used as they are.
# shellcheck source=python.sh
source "${MEGADS_ROOT}/envs/python.sh"
megads_find_python
