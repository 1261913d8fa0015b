# shellcheck shell=bash
# machine: sirius
# Sirius: its modules and NCCL plugin are Polaris's. Sourced by ALCF/helpers.sh.
# shellcheck source=polaris.sh
source "${MEGADS_ROOT}/envs/polaris.sh"
