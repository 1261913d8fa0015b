#!/usr/bin/env bash
# DeepSpeed's pipeline and ZeRO on one host, as BigScience's Megatron-DeepSpeed: its launcher and its JSON file.
#   N_GPUS=2 PP_SIZE=1 TP_SIZE=1 ZERO_STAGE=1 MICRO_BATCH_SIZE=1 GLOBAL_BATCH_SIZE=16 SAVE_INTERVAL=50 \
#   bash examples/pretrain_gpt_single_node.sh     with the variables of pretrain_gpt.sh and TENSORBOARD_PATH
# `megads train` alone starts the ranks too: LAUNCHER="" does that.
set -euo pipefail

LAUNCHER=${LAUNCHER-deepspeed --num_gpus ${N_GPUS} --module}
# Variables of this script are not settings; without a launcher `megads train` starts as many ranks.
[[ -n ${LAUNCHER} ]] || export NGPU_PER_HOST="${NGPU_PER_HOST:-${N_GPUS}}"
export -n LAUNCHER CHECKPOINT_PATH N_GPUS PP_SIZE TP_SIZE
config_json=${CHECKPOINT_PATH}.ds_config.json

GPT_ARGS=(
  --num-layers 2
  --hidden-size 64
  --num-attention-heads 2
  --seq-length 1024
  --max-position-embeddings 1024
  --micro-batch-size "${MICRO_BATCH_SIZE}"
  --rampup-batch-size 2 2 1_000
  --global-batch-size "${GLOBAL_BATCH_SIZE}"
  --train-samples 100
  --optimizer adam
  --adam-beta1 0.9
  --adam-beta2 0.95
  --adam-eps 1e-8
  --lr 1e-4
  --lr-warmup-samples 5
  --clip-grad 1.0
  --weight-decay 1e-1
  --vocab-file "${VOCAB_FILE}"
  --merge-file "${MERGE_FILE}"
  --fp16
)
OUTPUT_ARGS=(
  --log-interval 10
  --save-interval "${SAVE_INTERVAL}"
  --eval-interval 100
  --eval-iters 10
  --checkpoint-activations
)
# shellcheck disable=SC2206 # a blend is several words
DATA_ARGS=(
  --save "${CHECKPOINT_PATH}"
  --load "${CHECKPOINT_PATH}"
  --data-path ${DATA_PATH}
  --tensorboard-dir "${TENSORBOARD_PATH}"
  --tensorboard-queue-size 5
  --log-timers-to-tensorboard
  --log-batch-size-to-tensorboard
  --log-validation-ppl-to-tensorboard
)
DEEPSPEED_ARGS=(
  --deepspeed
  --deepspeed_config "${config_json}"
  --zero-stage "${ZERO_STAGE}"
  --deepspeed-activation-checkpointing
)

mkdir -p "$(dirname "${config_json}")"
cat >"${config_json}" <<EOT
{
  "train_micro_batch_size_per_gpu": ${MICRO_BATCH_SIZE},
  "train_batch_size": ${GLOBAL_BATCH_SIZE},
  "gradient_clipping": 1.0,
  "zero_optimization": {
    "stage": ${ZERO_STAGE}
  },
  "fp16": {
    "enabled": true,
    "loss_scale": 0,
    "loss_scale_window": 500,
    "hysteresis": 2,
    "min_loss_scale": 1,
    "initial_scale_power": 12
  },
  "steps_per_print": 2000,
  "wall_clock_breakdown": false
}
EOT

# shellcheck disable=SC2086 # a launcher is several words
${LAUNCHER} megads train \
  --tensor-model-parallel-size "${TP_SIZE}" \
  --pipeline-model-parallel-size "${PP_SIZE}" \
  --distributed-backend nccl \
  "${GPT_ARGS[@]}" "${OUTPUT_ARGS[@]}" "${DATA_ARGS[@]}" "${DEEPSPEED_ARGS[@]}" "$@"
