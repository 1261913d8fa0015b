#!/usr/bin/env bash
# The model of pretrain_bert.sh on all devices of this host, with PyTorch's launcher, as Megatron-LM's
# examples/pretrain_bert_distributed.sh. `megads train` alone starts the ranks too: LAUNCHER="" does that.
#   GPUS_PER_NODE=8 bash examples/pretrain_bert_distributed.sh     with the variables of pretrain_bert.sh
set -euo pipefail

DISTRIBUTED_ARGS="--nproc_per_node ${GPUS_PER_NODE} --nnodes ${NNODES:-1} --node_rank ${NODE_RANK:-0}"
DISTRIBUTED_ARGS+=" --master_addr ${MASTER_ADDR:-localhost} --master_port ${MASTER_PORT:-6000}"
LAUNCHER=${LAUNCHER-torchrun ${DISTRIBUTED_ARGS} -m}
# Variables of this script are not settings; without a launcher `megads train` starts as many ranks.
if [[ -n ${LAUNCHER} ]]; then export -n NNODES; else export NGPU_PER_HOST="${NGPU_PER_HOST:-${GPUS_PER_NODE}}"; fi
export -n LAUNCHER CHECKPOINT_PATH GPUS_PER_NODE

BERT_ARGS=(
  --model-type BERT
  --num-layers 24
  --hidden-size 1024
  --num-attention-heads 16
  --seq-length 512
  --max-position-embeddings 512
  --micro-batch-size 4
  --global-batch-size 32
  --lr 0.0001
  --train-iters 1000000
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

# shellcheck disable=SC2086 # a launcher is several words
${LAUNCHER} megads train "${BERT_ARGS[@]}" "${DATA_ARGS[@]}" "${OUTPUT_ARGS[@]}" --distributed-backend nccl \
  --DDP-impl torch --save "${CHECKPOINT_PATH}" --load "${CHECKPOINT_PATH}" "$@"
