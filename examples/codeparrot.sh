#!/usr/bin/env bash
# CodeParrot with 110M parameters on 8 devices, from Hugging Face's blog on Megatron-LM.
#   GPUS_PER_NODE=8 DATA_PATH=codeparrot_content_document VOCAB_FILE=vocab.json MERGE_FILE=merges.txt \
#   CHECKPOINT_PATH=experiments/codeparrot-small bash examples/codeparrot.sh
# `megads train` alone starts the ranks too: LAUNCHER="" does that.
set -euo pipefail

DISTRIBUTED_ARGS="--nproc_per_node ${GPUS_PER_NODE} --nnodes ${NNODES:-1} --node_rank ${NODE_RANK:-0}"
DISTRIBUTED_ARGS+=" --master_addr ${MASTER_ADDR:-localhost} --master_port ${MASTER_PORT:-6001}"
LAUNCHER=${LAUNCHER-python3 -m torch.distributed.run ${DISTRIBUTED_ARGS} -m}
# Variables of this script are not settings; without a launcher `megads train` starts as many ranks.
if [[ -n ${LAUNCHER} ]]; then export -n NNODES; else export NGPU_PER_HOST="${NGPU_PER_HOST:-${GPUS_PER_NODE}}"; fi
export -n LAUNCHER CHECKPOINT_PATH GPUS_PER_NODE

GPT_ARGS=(
  --num-layers 12
  --hidden-size 768
  --num-attention-heads 12
  --seq-length 1024
  --max-position-embeddings 1024
  --micro-batch-size 12
  --global-batch-size 192
  --lr 0.0005
  --train-iters 150000
  --lr-decay-iters 150000
  --lr-decay-style cosine
  --lr-warmup-iters 2000
  --weight-decay .1
  --adam-beta2 .999
  --fp16
  --log-interval 10
  --save-interval 2000
  --eval-interval 200
  --eval-iters 10
)
TENSORBOARD_ARGS=(--tensorboard-dir experiments/tensorboard)

# shellcheck disable=SC2086 # a launcher and a blend are several words
${LAUNCHER} megads train \
  --tensor-model-parallel-size 1 \
  --pipeline-model-parallel-size 1 \
  "${GPT_ARGS[@]}" \
  --vocab-file "${VOCAB_FILE}" \
  --merge-file "${MERGE_FILE}" \
  --save "${CHECKPOINT_PATH}" \
  --load "${CHECKPOINT_PATH}" \
  --data-path ${DATA_PATH} \
  "${TENSORBOARD_ARGS[@]}" "$@"
