#!/usr/bin/env bash
# The model of pretrain_t5.sh on all devices of this host, with PyTorch's launcher, as Megatron-LM's
# examples/pretrain_t5_distributed.sh. `megads train` alone starts the ranks too: LAUNCHER="" does that.
#   GPUS_PER_NODE=8 bash examples/pretrain_t5_distributed.sh     with the variables of pretrain_t5.sh
set -euo pipefail

DISTRIBUTED_ARGS="--nproc_per_node ${GPUS_PER_NODE} --nnodes ${NNODES:-1} --node_rank ${NODE_RANK:-0}"
DISTRIBUTED_ARGS+=" --master_addr ${MASTER_ADDR:-localhost} --master_port ${MASTER_PORT:-6000}"
LAUNCHER=${LAUNCHER-torchrun ${DISTRIBUTED_ARGS} -m}
# Variables of this script are not settings; without a launcher `megads train` starts as many ranks.
if [[ -n ${LAUNCHER} ]]; then export -n NNODES; else export NGPU_PER_HOST="${NGPU_PER_HOST:-${GPUS_PER_NODE}}"; fi
export -n LAUNCHER CHECKPOINT_PATH GPUS_PER_NODE

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
  --global-batch-size 128
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

# shellcheck disable=SC2086 # a launcher is several words
${LAUNCHER} megads train "${T5_ARGS[@]}" "${DATA_ARGS[@]}" "${OUTPUT_ARGS[@]}" --distributed-backend nccl \
  --DDP-impl torch --save "${CHECKPOINT_PATH}" --load "${CHECKPOINT_PATH}" "$@"
