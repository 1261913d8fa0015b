#!/usr/bin/env bash
# GPT-2 with 8 billion parameters on 64 devices: ZeRO and 2 tensor-parallel ranks, whose kept activations are split
# (the third row of DeepSpeed's Megatron-LM tutorial).
#   bash examples/ds_pretrain_gpt2_model_parallel.sh     inside a job of 16 hosts, with the variables of pretrain_gpt.sh
set -euo pipefail

here="$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)"
bash "${here}/ds_pretrain_gpt2.sh" \
  --num-layers 72 \
  --hidden-size 3072 \
  --num-attention-heads 24 \
  --tensor-model-parallel-size 2 \
  --global-batch-size 512 \
  --partition-activations \
  "$@"
