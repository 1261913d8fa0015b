#!/usr/bin/env bash
# MNLI with BERT of 345M parameters on 8 devices: Megatron-LM's examples/finetune_mnli_distributed.sh.
#   TRAIN_DATA=data/glue_data/MNLI/train.tsv \
#   VALID_DATA="data/glue_data/MNLI/dev_matched.tsv data/glue_data/MNLI/dev_mismatched.tsv" VOCAB_FILE=bert-vocab.txt \
#   PRETRAINED_CHECKPOINT=checkpoints/bert_345m CHECKPOINT_PATH=checkpoints/bert_345m_mnli \
#   bash examples/finetune_mnli_distributed.sh
# For QQP pass --task QQP behind it, with its files. `megads finetune` alone starts the ranks too: LAUNCHER="" does that.
set -euo pipefail

WORLD_SIZE=${WORLD_SIZE:-8}
DISTRIBUTED_ARGS="--nproc_per_node ${WORLD_SIZE} --nnodes 1 --node_rank 0 --master_addr localhost"
DISTRIBUTED_ARGS+=" --master_port ${MASTER_PORT:-6000}"
LAUNCHER=${LAUNCHER-python3 -m torch.distributed.run ${DISTRIBUTED_ARGS} -m}
# Variables of this script are not settings; without a launcher `megads finetune` starts as many ranks.
if [[ -z ${LAUNCHER} ]]; then export NGPU_PER_HOST="${NGPU_PER_HOST:-${WORLD_SIZE}}"; fi
export -n LAUNCHER WORLD_SIZE TRAIN_DATA VALID_DATA VOCAB_FILE PRETRAINED_CHECKPOINT CHECKPOINT_PATH

# shellcheck disable=SC2086 # a launcher and several files are several words
${LAUNCHER} megads finetune \
  --task MNLI \
  --seed 1234 \
  --train-data ${TRAIN_DATA} \
  --valid-data ${VALID_DATA} \
  --tokenizer-type BertWordPieceLowerCase \
  --vocab-file "${VOCAB_FILE}" \
  --epochs 5 \
  --pretrained-checkpoint "${PRETRAINED_CHECKPOINT}" \
  --tensor-model-parallel-size 1 \
  --num-layers 24 \
  --hidden-size 1024 \
  --num-attention-heads 16 \
  --micro-batch-size 8 \
  --lr 5.0e-5 \
  --lr-decay-style linear \
  --lr-warmup-fraction 0.065 \
  --seq-length 512 \
  --max-position-embeddings 512 \
  --save-interval 500000 \
  --save "${CHECKPOINT_PATH}" \
  --log-interval 10 \
  --eval-interval 100 \
  --eval-iters 50 \
  --weight-decay 1.0e-1 \
  --clip-grad 1.0 \
  --hidden-dropout 0.1 \
  --attention-dropout 0.1 \
  --fp16 "$@"
