"""The options of three toolkits, by which of them have each: facts that the option table is tested with.

M: Megatron-LM of May 2024. D: Megatron-DeepSpeed. B: BigScience's Megatron-DeepSpeed.
A name that ends with a colon is followed by one value, with two colons by any number of them.
"""

NAMES = {
    "MDB": """
        --num-layers: --hidden-size: --ffn-hidden-size: --num-attention-heads: --kv-channels:
        --max-position-embeddings: --make-vocab-size-divisible-by: --apply-residual-connection-post-layernorm
        --openai-gelu --onnx-safe: --bert-no-binary-head --log-params-norm --log-num-zeros-in-grad
        --tensorboard-log-interval: --tensorboard-queue-size: --log-timers-to-tensorboard
        --log-batch-size-to-tensorboard --no-log-learnig-rate-to-tensorboard --no-log-loss-scale-to-tensorboard
        --log-validation-ppl-to-tensorboard --attention-dropout: --hidden-dropout: --weight-decay: --clip-grad:
        --adam-beta1: --adam-beta2: --adam-eps: --sgd-momentum: --micro-batch-size: --batch-size:
        --global-batch-size: --rampup-batch-size:: --use-cpu-initialization --checkpoint-activations
        --train-iters: --train-samples: --log-interval: --exit-interval: --exit-duration-in-mins:
        --tensorboard-dir: --no-masked-softmax-fusion --no-bias-gelu-fusion --no-bias-dropout-fusion
        --optimizer: --dataloader-type: --seed: --init-method-std: --init-method-xavier-uniform --lr:
        --lr-decay-style: --lr-decay-iters: --lr-decay-samples: --lr-warmup-fraction: --lr-warmup-iters:
        --lr-warmup-samples: --warmup: --min-lr: --save: --save-interval: --no-save-optim --no-save-rng --load:
        --no-load-optim --no-load-rng --finetune --fp16 --bf16 --loss-scale: --initial-loss-scale:
        --min-loss-scale: --loss-scale-window: --hysteresis: --fp32-residual-connection
        --attention-softmax-in-fp32 --accumulate-allreduce-grads-in-fp32 --fp16-lm-cross-entropy
        --tensor-model-parallel-size: --pipeline-model-parallel-size: --model-parallel-size:
        --num-layers-per-virtual-pipeline-stage: --distributed-backend: --no-scatter-gather-tensors-in-pipeline
        --local_rank: --lazy-mpu-init: --eval-iters: --eval-interval: --data-path:: --split: --vocab-file:
        --merge-file: --vocab-extra-ids: --seq-length: --encoder-seq-length: --decoder-seq-length:
        --retriever-seq-length: --sample-rate: --mask-prob: --short-seq-prob: --num-workers: --tokenizer-type:
        --reset-position-ids --reset-attention-mask --eod-mask-loss --adlr-autoresume
        --adlr-autoresume-interval: --ict-head-size: --biencoder-projection-dim:
        --biencoder-shared-query-context-model --ict-load: --bert-load: --titles-data-path:
        --query-in-block-prob: --use-one-sent-docs --evidence-data-path: --retriever-report-topk-accuracies::
        --retriever-score-scaling --block-data-path: --embedding-path: --indexer-batch-size:
        --indexer-log-interval: --num-classes: --num-channels: --patch-dim:
    """,
    "DB": """
        --layernorm-epsilon: --distribute-checkpointed-activations --checkpoint-num-layers: --train-tokens:
        --cpu-optimizer --cpu_torch_adam --inference --lr-decay-tokens: --universal-checkpoint
        --no-query-key-layer-scaling --DDP-impl: --mmap-warmup --data-impl: --zero-stage: --zero-reduce-scatter
        --zero-contigious-gradients --zero-reduce-bucket-size: --zero-allgather-bucket-size: --remote-device:
        --use-pin-memory --scattered-embeddings --split-transformers --memory-centric-tiled-linear
        --tile-factor: --deepspeed-activation-checkpointing --partition-activations --contigious-checkpointing
        --checkpoint-in-cpu --synchronize-each-layer --profile-backward
    """,
    "MB": """
        --position-embedding-type:
    """,
    "MD": """
        --fp8-margin: --fp8-interval: --fp8-amax-history-len: --fp8-amax-compute-algo: --no-fp8-wgrad
        --transformer-impl: --inference-batch-times-seqlen-threshold: --max-tokens-to-oom:
        --output-bert-embeddings --bert-embedder-type: --retro-add-retriever --retro-cyclic-train-iters:
        --retro-encoder-layers: --retro-encoder-hidden-dropout: --retro-encoder-attention-dropout:
        --retro-num-neighbors: --retro-num-retrieved-chunks: --encoder-num-layers: --decoder-num-layers:
        --use-rotary-position-embeddings --rotary-percent: --no-position-embedding --normalization:
        --apply-layernorm-1p --squared-relu --swiglu --untie-embeddings-and-output-weights --timing-log-level:
        --no-barrier-with-level-1-timing --timing-log-option: --log-memory-to-tensorboard
        --log-world-size-to-tensorboard --wandb-project: --wandb-exp-name: --wandb-save-dir:
        --start-weight-decay: --end-weight-decay: --weight-decay-incr-style: --recompute-activations
        --recompute-granularity: --distribute-saved-activations --recompute-method: --recompute-num-layers:
        --profile --profile-ranks:: --empty-unused-memory-level: --exit-signal-handler --use-flash-attn
        --disable-bias-linear --no-async-tensor-model-parallel-allreduce --no-persist-layer-norm
        --sequence-parallel --no-gradient-accumulation-fusion --data-parallel-random-init
        --override-opt_param-scheduler --use-checkpoint-opt_param-scheduler --no-initialization
        --use-checkpoint-args --exit-on-missing-checkpoint --pipeline-model-parallel-split-rank:
        --distributed-timeout-minutes: --use-ring-exchange-p2p --standalone-embedding-stage
        --use-distributed-optimizer --skip-train --train-data-path:: --valid-data-path:: --test-data-path::
        --data-cache-path: --vocab-size: --tokenizer-model: --img-h: --img-w: --classes-fraction:
        --data-per-class-fraction: --no-data-sharding --head-lr-mult: --vision-pretraining
        --vision-pretraining-type: --vision-backbone-type: --swin-backbone-type: --mask-type: --mask-factor:
        --iter-per-epoch: --dino-local-img-size: --dino-local-crops-number: --dino-head-hidden-size:
        --dino-bottleneck-size: --dino-freeze-last-layer: --dino-norm-last-layer --dino-warmup-teacher-temp:
        --dino-teacher-temp: --dino-warmup-teacher-temp-epochs: --num-experts:
    """,
    "B": """
        --pad-vocab-size-to: --sync-tp-duplicated-parameters --embed-layernorm --glu-activation:
        --kill-switch-path: --log-level: --log-level-replica: --use-bnb-optimizer --codecarbon-dir: --eval-only:
        --skip-train-iteration-range:: --abort-on-unmet-fused-kernel-constraints --pp-partition-method:
        --override-lr-scheduler --use-checkpoint-lr-scheduler --use-contiguous-buffers-in-ddp
        --train-weighted-split-paths:: --valid-weighted-split-paths:: --test-weighted-split-paths::
        --train-weighted-split-paths-path: --valid-weighted-split-paths-path: --test-weighted-split-paths-path:
        --log-path: --valid-num-workers: --tokenizer-name-or-path: --loss-on-targets-only
        --reweight-loss-based-on-position-frequency --noise-density: --mean-noise-span-length: --img-dim:
    """,
    "D": """
        --fp8-e4m3 --fp8-hybrid --retro-workdir: --retro-return-doc-ids --mlp-type: --topk: --expert-interval:
        --num-key-value-heads: --rotary-position-embeddings-theta: --disable-mem-efficient-ln
        --num-experts-switch: --embedding-weights-in-fp32 --kill-switch-file:
        --log-optimizer-states-to-tensorboard --enable-zbh1-pipeline --enable-zbh1-exact-semantics --random-ltd
        --disable-moe-token-dropping --moe-train-capacity-factor: --moe-eval-capacity-factor:
        --moe-min-capacity: --moe-loss-coeff: --create-moe-param-group --disable-moe-top2-2nd-expert-sampling
        --use-flash-attn-v1 --use-flash-attn-v2 --use-flash-attn-triton --use-flash-attn-builder --ds-inference
        --ds_fused_adam --no-pipeline-parallel --use-tutel --ds-sequence-parallel-size:
        --force-ds-sequence-parallel --ds-sequence-parallel-fpdt --ds-sequence-parallel-fpdt-chunk-size:
        --ds-sequence-parallel-fpdt-offloading --use-dataset-only: --lr-warmup-tokens: --load-tag:
        --no-load-lr-state --enable-expert-tensor-parallelism --moe-expert-parallel-size:
        --overlap-p2p-communication --no-contiguous-buffers-in-local-ddp --local-rank: --aml-data-download-path:
        --trust-remote-code --train-data-exact-num-epochs: --return-data-index
        --data-efficiency-curriculum-learning --train-idx-path: --train-desc-path: --train-doc-idx-path:
        --train-sample-idx-path: --train-shuffle-idx-path: --repeated-dataloader --num-layers-teacher:
        --num-experts-teacher:: --hidden-size-teacher: --num-attention-heads-teacher: --mos --kd --kd-alpha-ce:
        --kd-beta-ce: --kd-temp: --reset-iteration --load-teacher: --profile_steps:
    """,
    "M": """
        --fp8-format: --retro-project-dir: --retro-attention-gate: --retro-no-verify-neighbor-count
        --group-query-attention --num-query-groups: --rotary-interleaved --rotary-seq-len-interpolation-factor:
        --norm-epsilon: --log-straggler --disable-straggler-on-startup --straggler-ctrlr-port:
        --straggler-minmax-count: --log-throughput --log-progress --enable-one-logger --one-logger-project:
        --one-logger-entity: --one-logger-run-name: --no-check-for-nan-in-loss-and-grad
        --no-clone-scatter-output-in-embedding --profile-step-start: --profile-step-end: --tp-comm-overlap
        --tp-comm-overlap-cfg: --disable-tp-comm-overlap-ag --disable-tp-comm-overlap-rs
        --tp-comm-overlap-rs-dgrad --disable-tp-comm-bulk-dgrad --disable-tp-comm-bulk-wgrad
        --check-weight-hash-across-dp-replicas-interval: --no-bias-swiglu-fusion --no-rope-fusion --add-qkv-bias
        --use-mcore-models --manual-gc --manual-gc-interval: --no-manual-gc-eval --disable-tp-comm-split-ag
        --disable-tp-comm-split-rs --lr-warmup-init: --decoupled-lr: --decoupled-min-lr:
        --pretrained-checkpoint: --ckpt-step: --use-dist-ckpt --auto-detect-ckpt-format --dist-ckpt-format:
        --ckpt-fully-parallel-save --async-save --ckpt-fully-parallel-load --ckpt-assume-constant-structure
        --apply-query-key-layer-scaling --no-overlap-p2p-communication --overlap-grad-reduce
        --no-delay-grad-reduce --ddp-bucket-size: --overlap-param-gather --delay-param-gather
        --context-parallel-size: --nccl-communicator-config-path: --use-tp-pp-dp-mapping --test-mode
        --no-mmap-bin-files --mock-data --no-create-attention-mask-in-dataloader --num-dataset-builder-threads:
        --qk-layernorm --expert-model-parallel-size: --moe-router-load-balancing-type: --moe-router-topk:
        --moe-grouped-gemm --moe-aux-loss-coeff: --moe-z-loss-coeff: --moe-input-jitter-eps:
        --moe-token-dispatcher-type: --moe-per-layer-logging --moe-expert-capacity-factor:
        --moe-pad-expert-input-to-capacity --moe-token-drop-policy: --moe-layer-recompute --moe-extended-tp
        --spec:: --yaml-cfg:
    """,
}
