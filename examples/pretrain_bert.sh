#!/usr/bin/env bash
# BERT with 345M parameters on one device: Megatron-LM's examples/pretrain_bert.sh.
#   DATA_PATH=my-bert_text_sentence VOCAB_FILE=bert-vocab.txt CHECKPOINT_PATH=checkpoints/bert bash examples/pretrain_bert.sh
# DATA_PATH may be a blend, as "0.3 a 0.7 b". Options after the name are appended, e.g. --dry-run or --train-iters 100.
set -euo pipefail
# Variables of this script are not settings.
export -n CHECKPOINT_PATH

BERT_ARGS=(
  --model-type BERT
  --num-layers 24
  --hidden-size 1024
  --num-attention-heads 16
  --seq-length 512
  --max-position-embeddings 512
  --micro-batch-size 4
  --global-batch-size 8
  --lr 0.0001
  --train-iters 2000000
  --lr-decay-iters 990000
  --lr-decay-style linear
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
  --split "949,50,1"
)
OUTPUT_ARGS=(
  --log-interval 100
  --save-interval 10000
  --eval-interval 1000
  --eval-iters 10
)

megads train "${BERT_ARGS[@]}" "${DATA_ARGS[@]}" "${OUTPUT_ARGS[@]}" \
  --save "${CHECKPOINT_PATH}" --load "${CHECKPOINT_PATH}" "$@"
