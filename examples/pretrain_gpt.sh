#!/usr/bin/env bash
# GPT with 345M parameters on one device: Megatron-LM's examples/pretrain_gpt.sh.
#   DATA_PATH=my-gpt2_text_document VOCAB_FILE=gpt2-vocab.json MERGE_FILE=gpt2-merges.txt \
#   CHECKPOINT_PATH=checkpoints/gpt2 bash examples/pretrain_gpt.sh
# DATA_PATH may be a blend, as "0.3 a 0.7 b". Options after the name are appended, e.g. --dry-run or --train-iters 100.
set -euo pipefail
# Variables of this script are not settings.
export -n CHECKPOINT_PATH

GPT_ARGS=(
  --num-layers 24
  --hidden-size 1024
  --num-attention-heads 16
  --seq-length 1024
  --max-position-embeddings 1024
  --micro-batch-size 4
  --global-batch-size 8
  --lr 0.00015
  --train-iters 500000
  --lr-decay-iters 320000
  --lr-decay-style cosine
  --min-lr 1.0e-5
  --weight-decay 1e-2
  --lr-warmup-fraction .01
  --clip-grad 1.0
  --fp16
)
# shellcheck disable=SC2206 # a blend is several words
DATA_ARGS=(
  --data-path ${DATA_PATH}
  --vocab-file "${VOCAB_FILE}"
  --merge-file "${MERGE_FILE}"
  --split "949,50,1"
)
OUTPUT_ARGS=(
  --log-interval 100
  --save-interval 10000
  --eval-interval 1000
  --eval-iters 10
)

megads train "${GPT_ARGS[@]}" "${DATA_ARGS[@]}" "${OUTPUT_ARGS[@]}" \
  --save "${CHECKPOINT_PATH}" --load "${CHECKPOINT_PATH}" "$@"
