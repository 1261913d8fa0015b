#!/usr/bin/env bash
# The model of pretrain_t5.sh split over 2 of 8 devices, as Megatron-LM's examples/pretrain_t5_distributed_with_mp.sh.
#   GPUS_PER_NODE=8 bash examples/pretrain_t5_distributed_with_mp.sh     with the variables of pretrain_t5.sh
set -euo pipefail

here="$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)"
bash "${here}/pretrain_t5_distributed.sh" \
  --tensor-model-parallel-size 2 \
  "$@"
