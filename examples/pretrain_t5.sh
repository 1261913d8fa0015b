#!/usr/bin/env bash
# T5 with 220M parameters on one device: Megatron-LM's examples/pretrain_t5.sh.
#   DATA_PATH=my-t5_text_sentence VOCAB_FILE=bert-vocab.txt CHECKPOINT_PATH=checkpoints/t5 bash examples/pretrain_t5.sh
# DATA_PATH may be a blend, as "0.3 a 0.7 b". Options after the name are appended, e.g. --dry-run or --train-iters 100.
set -euo pipefail
# Variables of this script are not settings.
export -n CHECKPOINT_PATH

T5_ARGS=(
  --model-type T5
  --num-layers 12
  --hidden-size 768
  --num-attention-heads 12
  --kv-channels 64
  --ffn-hidden-size 3072
  --encoder-seq-length 512
  --decoder-seq-length 128
  --max-position-embeddings 512
  --micro-batch-size 16
  --global-batch-size 16
  --lr 0.0001
  --train-iters 1000000
  --lr-decay-iters 1000000
  --lr-decay-style linear
  --min-lr 1.0e-5
  --weight-decay 1e-2
  --lr-warmup-fraction .01
  --clip-grad 1.0
  --fp16
  --vocab-extra-ids 100
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

megads train "${T5_ARGS[@]}" "${DATA_ARGS[@]}" "${OUTPUT_ARGS[@]}" \
  --save "${CHECKPOINT_PATH}" --load "${CHECKPOINT_PATH}" "$@"
