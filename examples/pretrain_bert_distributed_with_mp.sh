#!/usr/bin/env bash
# The model of pretrain_bert.sh split over 2 x 2 of 8 devices, as Megatron-LM's
# examples/pretrain_bert_distributed_with_mp.sh.
#   GPUS_PER_NODE=8 bash examples/pretrain_bert_distributed_with_mp.sh     with the variables of pretrain_bert.sh
set -euo pipefail

here="$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)"
bash "${here}/pretrain_bert_distributed.sh" \
  --tensor-model-parallel-size 2 \
  --pipeline-model-parallel-size 2 \
  --micro-batch-size 2 \
  --global-batch-size 16 \
  "$@"
