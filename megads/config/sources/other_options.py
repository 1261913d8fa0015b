"""Options of Megatron-LM, Megatron-DeepSpeed and DeepSpeed that are not settings: harmless, or rejected.

An option that cannot change the result is accepted and reported. One that would change it is
rejected, with what to use instead. Options that are settings are declared with these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Takes = Literal["", "value", "values"]


@dataclass(frozen=True)
class Option:
    """What becomes of an option that is not a setting."""

    takes: Takes  # the words that follow it: none, one, or all up to the next option
    why: str  # it has no effect here, or is rejected
    is_rejected: bool  # because ignoring it would train something else
    # values that say what is so here anyway; with one of these it is accepted silently
    so_here: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Need:
    """What an option needs next to it, since without that Megatron-LM ignores or rejects it."""

    options: Mapping[str, tuple[str, ...]]  # any one of them, with one of its words; no words: whatever follows it
    why: str  # what is missing

    def is_met_by(self, given: Mapping[str, str]) -> bool:
        """Return whether one of the options is in ``given``, which holds the word that follows each."""
        return any(name in given and (not words or given[name] in words) for name, words in self.options.items())


def _options(table: Mapping[str, str], *, is_rejected: bool) -> dict[str, Option]:
    """Return options by name.

    Args:
        table: why -> options, each with what may follow it: ``--one`` nothing, ``--one=`` a word, ``--one=...`` words
            up to the next option; ``--one=a|b``: a word, and a and b say what is so here anyway.
        is_rejected: whether they are.
    """
    found = {}
    for why, names in table.items():
        for word in names.split():
            name, equals, rest = word.partition("=")
            takes: Takes = "" if not equals else "values" if rest.endswith("...") else "value"
            so_here = frozenset(filter(None, rest.removesuffix("...").split("|")))
            found[name] = Option(takes, why, is_rejected, so_here)
    return found


_GPT = "megads train trains GPT, Llama, BERT, T5 and Retro, not"


HARMLESS = _options(
    {
        "kernels are torch's and are chosen by torch": """
            --no-masked-softmax-fusion --no-bias-swiglu-fusion --no-bias-dropout-fusion --no-rope-fusion
            --no-gradient-accumulation-fusion --no-persist-layer-norm --disable-mem-efficient-ln
            --abort-on-unmet-fused-kernel-constraints --cpu_torch_adam --ds_fused_adam --transformer-impl=
        """,
        "attention is torch's scaled_dot_product_attention, which has flash kernels; ATTENTION=flash takes the "
        "flash-attn package": """
            --use-flash-attn --use-flash-attn-v1 --use-flash-attn-v2 --use-flash-attn-triton
            --use-flash-attn-builder
        """,
        "attention scales and takes its softmax in fp32 inside the kernel": """
            --apply-query-key-layer-scaling --no-query-key-layer-scaling --attention-softmax-in-fp32
        """,
        "initial weights are drawn the same for every layout": """
            --use-cpu-initialization --sync-tp-duplicated-parameters --no-initialization
        """,
        "ENGINE says which engine runs": "--deepspeed --deepspeed_mpi --no-pipeline-parallel",
        "communication is torch's and DeepSpeed's, in their own order and buckets": """
            --no-async-tensor-model-parallel-allreduce --disable-tp-comm-overlap-ag
            --disable-tp-comm-overlap-rs --tp-comm-overlap-rs-dgrad --disable-tp-comm-bulk-dgrad
            --disable-tp-comm-bulk-wgrad --disable-tp-comm-split-ag --disable-tp-comm-split-rs
            --overlap-p2p-communication --no-overlap-p2p-communication --no-delay-grad-reduce --overlap-param-gather
            --delay-param-gather --no-scatter-gather-tensors-in-pipeline --use-ring-exchange-p2p
            --use-contiguous-buffers-in-ddp --no-contiguous-buffers-in-local-ddp --use-tp-pp-dp-mapping
            --no-clone-scatter-output-in-embedding --force-ds-sequence-parallel --tp-comm-overlap-cfg=
            --ddp-bucket-size= --nccl-communicator-config-path= --zero-reduce-bucket-size=
            --zero-allgather-bucket-size=
        """,
        "the communication backend follows from the device; MEGADS_BACKEND overrides it": "--distributed-backend=",
        "ranks come from the launcher": "--local_rank= --local-rank= --lazy-mpu-init=",
        "the format of a token file is read from the file, and token files are always memory-mapped": """
            --mmap-warmup --no-mmap-bin-files --data-impl=
        """,
        "the data loader has one way to read; NUM_WORKERS sets its threads": """
            --no-create-attention-mask-in-dataloader --repeated-dataloader --return-data-index --valid-num-workers=
            --num-dataset-builder-threads= --multiprocessing-context=
        """,
        "checkpoints have one format, which every layout reads and writes in parallel": """
            --use-dist-ckpt --auto-detect-ckpt-format --ckpt-fully-parallel-save --ckpt-fully-parallel-load
            --ckpt-assume-constant-structure --universal-checkpoint --exit-on-missing-checkpoint --dist-ckpt-format=
        """,
        "the model has one implementation": "--use-mcore-models",
        "Megatron-DeepSpeed does not read it either": """
            --no-load-lr-state --scattered-embeddings --split-transformers --memory-centric-tiled-linear
            --tile-factor=
        """,
        "throughput, times, stragglers and progress are always logged": """
            --log-throughput --log-progress --log-straggler --disable-straggler-on-startup
            --no-barrier-with-level-1-timing --log-optimizer-states-to-tensorboard --enable-one-logger --test-mode
            --timing-log-level= --timing-log-option= --straggler-ctrlr-port= --straggler-minmax-count=
            --one-logger-project= --one-logger-entity= --one-logger-run-name= --wandb-save-dir= --log-path=
            --log-level-replica=
        """,
        "signals, `megads stop RUN` and the end of the job save and stop a run": """
            --exit-signal-handler --adlr-autoresume --adlr-autoresume-interval= --kill-switch-path=
            --kill-switch-file=
        """,
        "ON_NAN sets what happens at NaN or Inf": "--no-check-for-nan-in-loss-and-grad",
        "weights of data-parallel ranks are equal": "--check-weight-hash-across-dp-replicas-interval=",
        "memory is Python's and torch's to manage": """
            --manual-gc --no-manual-gc-eval --manual-gc-interval= --empty-unused-memory-level=
        """,
        "there are no experts": """
            --create-moe-param-group --disable-moe-token-dropping --disable-moe-top2-2nd-expert-sampling --use-tutel
            --enable-expert-tensor-parallelism --moe-grouped-gemm --moe-per-layer-logging
            --moe-pad-expert-input-to-capacity --moe-layer-recompute --moe-extended-tp --mlp-type= --topk=
            --expert-interval= --moe-train-capacity-factor= --moe-eval-capacity-factor= --moe-min-capacity=
            --moe-loss-coeff= --moe-router-load-balancing-type= --moe-router-topk= --moe-aux-loss-coeff=
            --moe-z-loss-coeff= --moe-input-jitter-eps= --moe-token-dispatcher-type= --moe-expert-capacity-factor=
            --moe-token-drop-policy=
        """,
        "nothing is computed in fp8": """
            --no-fp8-wgrad --fp8-margin= --fp8-interval= --fp8-amax-history-len= --fp8-amax-compute-algo=
        """,
        "code of a tokenizer's repository is never run": "--trust-remote-code",
        "the model that Megatron-DeepSpeed trains does not read it either; --init-method-std sets all weights": """
            --adjust-word-embedding-init --word-embedding-init-std=
        """,
    },
    is_rejected=False,
)
REJECTED = _options(
    {
        f"{_GPT} embeddings of texts": "--output-bert-embeddings --bert-embedder-type=",
        "use --mask-prob; spans have 1 to 10 words": "--noise-density= --mean-noise-span-length=",
        "samples of Retro have no numbers of their documents": "--retro-return-doc-ids",
        f"{_GPT} retrievers": """
            --biencoder-shared-query-context-model --use-one-sent-docs --retriever-score-scaling --ict-head-size=
            --biencoder-projection-dim= --ict-load= --bert-load= --titles-data-path= --query-in-block-prob=
            --evidence-data-path= --block-data-path= --embedding-path= --indexer-batch-size= --indexer-log-interval=
            --retriever-seq-length= --retriever-report-topk-accuracies=... --sample-rate=1|1.0
        """,
        f"{_GPT} models of images": """
            --no-data-sharding --vision-pretraining --dino-norm-last-layer --num-classes= --img-h= --img-w=
            --img-dim= --num-channels= --patch-dim= --classes-fraction= --data-per-class-fraction= --head-lr-mult=
            --vision-pretraining-type= --vision-backbone-type= --swin-backbone-type= --mask-type= --mask-factor=
            --iter-per-epoch= --dino-local-img-size= --dino-local-crops-number= --dino-head-hidden-size=
            --dino-bottleneck-size= --dino-freeze-last-layer= --dino-warmup-teacher-temp= --dino-teacher-temp=
            --dino-warmup-teacher-temp-epochs=
        """,
        f"{_GPT} students of a teacher": """
            --mos --kd --num-layers-teacher= --hidden-size-teacher= --num-attention-heads-teacher= --kd-alpha-ce=
            --kd-beta-ce= --kd-temp= --load-teacher= --num-experts-teacher=...
        """,
        "megads train trains; it does not generate text": """
            --inference --ds-inference --inference-batch-times-seqlen-threshold= --max-tokens-to-oom=
        """,
        "--skip-train (EVALUATE_ONLY=1) evaluates only": "--eval-only=False|false|0",
        "experts are not supported; a dense model has --num-experts 1": "--num-experts=1...",
        "experts are not supported; a dense model has 1": """
            --expert-model-parallel-size=1 --moe-expert-parallel-size=1 --num-experts-switch=1
        """,
        "use --ds-sequence-parallel-size (SP), which splits samples over ranks too": "--context-parallel-size=1",
        "use --ds-sequence-parallel-size (SP) and RECOMPUTE=full for long samples": """
            --ds-sequence-parallel-fpdt --ds-sequence-parallel-fpdt-offloading
            --ds-sequence-parallel-fpdt-chunk-size=
        """,
        "fp8 is not supported; use --bf16": "--fp8-e4m3 --fp8-hybrid --fp8-format=",
        "the residual stream has DTYPE; use fp32 without --bf16 and --fp16": "--fp32-residual-connection",
        "embeddings have DTYPE; drop it": "--embedding-weights-in-fp32",
        "the loss is computed in fp32; drop it": "--fp16-lm-cross-entropy",
        "norms are LayerNorm or RMSNorm before or after attention and MLP; drop it": """
            --apply-layernorm-1p --apply-residual-connection-post-layernorm --embed-layernorm
        """,
        "use QK_NORM=head, an RMSNorm of each head's queries and keys": "--qk-layernorm",
        "biases are in all linear layers or in none; drop it": "--add-qkv-bias",
        "use --swiglu, --openai-gelu or --no-bias-gelu-fusion (exact GELU)": "--squared-relu --onnx-safe=",
        "use --swiglu; its --ffn-hidden-size is then 8/3 of --hidden-size unless you pass it (4 x in BigScience's)": """
            --glu-activation=
        """,
        "all of a head is rotated, in two halves; drop it": "--rotary-interleaved --rotary-percent=1|1.0",
        "initial weights are normal; use --init-method-std": "--init-method-xavier-uniform",
        "data-parallel ranks have the same weights; drop it": "--data-parallel-random-init",
        "all weights have one learning rate; use --lr and --min-lr": "--decoupled-lr= --decoupled-min-lr=",
        "use --optimizer adam8bit": "--use-bnb-optimizer",
        "samples are shuffled once for the whole run, which is --dataloader-type single": "--dataloader-type=single",
        "use --train-data-path, --valid-data-path and --test-data-path for full files, or --data-path and --split": """
            --train-weighted-split-paths-path= --valid-weighted-split-paths-path= --test-weighted-split-paths-path=
            --train-weighted-split-paths=... --valid-weighted-split-paths=... --test-weighted-split-paths=...
        """,
        "without --data-path the demo corpus is read": "--mock-data",
        "sample indices are made from --data-path and --seed; use --train-iters for the length": """
            --train-data-exact-num-epochs= --train-idx-path= --train-desc-path= --train-doc-idx-path=
            --train-sample-idx-path= --train-shuffle-idx-path= --aml-data-download-path= --use-dataset-only=
        """,
        "every token of every sample counts, but for --eod-mask-loss; drop it": """
            --loss-on-targets-only --reweight-loss-based-on-position-frequency --random-ltd
            --data-efficiency-curriculum-learning
        """,
        "use PIPELINE_SPLIT=ends, or a list of layers, e.g. 6,8,8,6": "--standalone-embedding-stage",
        "use --ckpt-step for an iteration, --load for a folder": "--load-tag=",
        "use --train-range-to-skip FIRST LAST": "--train-iters-to-skip=...",
        "use --zero-stage 3, which computes the same": "--use-mics",
        "use --finetune, which starts at iteration 0": "--reset-iteration",
        "the model is described by options; drop it": "--spec=...",
        "pass the options themselves, or --set section.key=value": "--yaml-cfg=",
        "Megatron-LM dropped it; use --micro-batch-size": "--batch-size=",
        "Megatron-LM dropped it; use --lr-warmup-fraction": "--warmup=",
        "Megatron-LM dropped it; use --tensor-model-parallel-size": "--model-parallel-size=",
    },
    is_rejected=True,
)

OPTIONS: Mapping[str, Option] = {
    **HARMLESS,
    **REJECTED,
    "--no-position-embedding": Option("", "rotary positions replace learned ones", is_rejected=False),
}
"""Every option that is not a setting, by name."""

NEEDS: Mapping[str, Need] = {
    "--num-query-groups": Need(
        {"--group-query-attention": ()},
        "has no effect in Megatron-LM without --group-query-attention; pass that too, or --num-key-value-heads",
    ),
    "--no-position-embedding": Need(
        {"--use-rotary-position-embeddings": (), "--position-embedding-type": ("rope", "rotary")},
        "needs --use-rotary-position-embeddings: a model without positions is not supported",
    ),
    "--vocab-size": Need(
        {"--tokenizer-type": ("NullTokenizer",)},
        "is of --tokenizer-type NullTokenizer, as in Megatron-LM; VOCAB_SIZE sets the model's vocabulary",
    ),
}
"""Options that are nothing without another."""

OPTIONAL_WORDS: Mapping[str, frozenset[str]] = {"--profile": frozenset(("pt", "pt-full"))}
"""Words that may follow an option of another toolkit and say nothing here."""
