#!/usr/bin/env bash
#SBATCH --nodes=128 --ntasks-per-node=1 --gpus-per-node=8 --exclusive --job-name=gpt3_175b
# GPT-3 with 175 billion parameters on 1,024 devices under SLURM, as Megatron-LM's examples/pretrain_gpt3_175B.sh.
# `megads train` finds the job's hosts and starts the ranks by srun.
#   DATA_BLEND="0.2 a 0.3 b 0.5 c" ... sbatch -A ACCOUNT -t 24:00:00 examples/pretrain_gpt3_175B.sh
#   with VOCAB_FILE, MERGE_FILE, CHECKPOINT_PATH and TENSORBOARD_PATH
set -euo pipefail
# Variables of this script are not settings.
export -n CHECKPOINT_PATH

OPTIONS=(
  --sequence-parallel
  --recompute-activations
  --tensor-model-parallel-size 8
  --pipeline-model-parallel-size 16
  --num-layers 96
  --hidden-size 12288
  --num-attention-heads 96
  --seq-length 2048
  --max-position-embeddings 2048
  --micro-batch-size 1
  --global-batch-size 1536
  --rampup-batch-size 16 16 5859375
  --train-samples 146484375
  --lr-decay-samples 126953125
  --lr-warmup-samples 183105
  --lr 6.0e-5
  --min-lr 6.0e-6
  --lr-decay-style cosine
  --log-interval 10
  --eval-iters 40
  --eval-interval 1000
  --vocab-file "${VOCAB_FILE}"
  --merge-file "${MERGE_FILE}"
  --save-interval 1000
  --save "${CHECKPOINT_PATH}"
  --load "${CHECKPOINT_PATH}"
  --split "98,2,0"
  --clip-grad 1.0
  --weight-decay 0.1
  --adam-beta1 0.9
  --adam-beta2 0.95
  --init-method-std 0.006
  --tensorboard-dir "${TENSORBOARD_PATH}"
  --fp16
)

# shellcheck disable=SC2086 # a blend is several words
megads train "${OPTIONS[@]}" --data-path ${DATA_BLEND} "$@"
