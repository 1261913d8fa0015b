#!/usr/bin/env bash
# GPT-2 with 1.5 billion parameters and ZeRO on 64 devices, the first row of DeepSpeed's Megatron-LM tutorial.
#   bash examples/ds_pretrain_gpt2.sh     inside a job of 16 hosts, with the variables of pretrain_gpt.sh
set -euo pipefail
# Variables of this script are not settings.
export -n CHECKPOINT_PATH

here="$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)"
GPT_ARGS=(
  --num-layers 48
  --hidden-size 1600
  --num-attention-heads 16
  --seq-length 1024
  --max-position-embeddings 1024
  --global-batch-size 2048
  --micro-batch-size 8
  --train-iters 320000
  --lr 0.00015
  --lr-decay-style cosine
  --lr-warmup-fraction .01
  --weight-decay 1e-2
  --clip-grad 1.0
  --save "${CHECKPOINT_PATH}"
  --load "${CHECKPOINT_PATH}"
  --vocab-file "${VOCAB_FILE}"
  --merge-file "${MERGE_FILE}"
  --split "949,50,1"
  --fp16
  --checkpoint-activations
  --deepspeed
  --deepspeed_config "${here}/ds_zero_stage_2.json"
  --deepspeed-activation-checkpointing
)

# shellcheck disable=SC2086 # a blend is several words
megads train "${GPT_ARGS[@]}" --data-path ${DATA_PATH} "$@"
