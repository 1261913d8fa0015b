#!/usr/bin/env bash
# The model of pretrain_gpt.sh split over 2 x 2 of 8 devices, as Megatron-LM's examples/pretrain_gpt_distributed_with_mp.sh.
#   GPUS_PER_NODE=8 bash examples/pretrain_gpt_distributed_with_mp.sh     with the variables of pretrain_gpt.sh
set -euo pipefail

here="$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)"
bash "${here}/pretrain_gpt_distributed.sh" \
  --tensor-model-parallel-size 2 \
  --pipeline-model-parallel-size 2 \
  --sequence-parallel \
  --micro-batch-size 4 \
  --global-batch-size 16 \
  "$@"
