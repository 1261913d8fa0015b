# shellcheck shell=bash
# machine: polaris
# Polaris: the conda module has torch for NVIDIA GPUs in its base environment. Sourced by ALCF/helpers.sh.
# shellcheck source=python.sh
source "${MEGADS_ROOT}/envs/python.sh"
# shellcheck source=modules.sh
source "${MEGADS_ROOT}/envs/modules.sh"
megads_load_modules use:/soft/modulefiles conda conda:base &&
  megads_load_for_container use:/soft/spack/gcc/0.6.1/install/modulefiles/Core apptainer cray-mpich-abi &&
  megads_find_site_python && megads_find_python && megads_put_first || return
# NCCL over Slingshot needs this plugin; without it, it uses TCP at a third of the bandwidth or less.
# Training that hangs in NCCL goes without: NCCL_NET=Socket.
if [[ -e /soft/libraries/aws-ofi-nccl/v1.9.1-aws/lib/libnccl-net.so ]]; then
  megads_prepend LD_LIBRARY_PATH /soft/libraries/hwloc/lib
  megads_prepend LD_LIBRARY_PATH /soft/libraries/aws-ofi-nccl/v1.9.1-aws/lib
  export NCCL_NET="${NCCL_NET:-AWS Libfabric}"
fi
# What containers get of the host: MPI behind MPICH's ABI, libfabric, NCCL's plugin, PALS.
if megads_in_container; then
  megads_prepend APPTAINERENV_LD_LIBRARY_PATH \
    "${CRAY_LD_LIBRARY_PATH:+${CRAY_LD_LIBRARY_PATH}:}${LD_LIBRARY_PATH:+${LD_LIBRARY_PATH}:}/opt/cray/pe/pals/1.2.12/lib"
fi
