"""Options of Megatron-LM, Megatron-DeepSpeed and DeepSpeed that are not settings: harmless, or rejected.

An option that cannot change the result is accepted and reported. One that would change it is
rejected, with what to use instead. Options that are settings are declared with these.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

Takes = Literal["", "value", "values"]


@dataclass(frozen=True)
class Option:
    """What becomes of an option that is not a setting.

    Attributes:
        takes: the words that follow it: none, one, or all up to the next option.
        why: it has no effect here, or is rejected.
        is_rejected: because ignoring it would train something else.
        so_here: values that say what is so here anyway; with one of these it is accepted silently.
    """

    takes: Takes
    why: str
    is_rejected: bool
    so_here: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Need:
    """What an option needs next to it, since without that Megatron-LM ignores or rejects it.

    Attributes:
        options: any one of them, with one of its words; no words: whatever follows it.
        why: what is missing.
    """

    options: Mapping[str, tuple[str, ...]]
    why: str

    def is_met_by(self, given: Mapping[str, str]) -> bool:
        """Return whether one of the options is in ``given``, which holds the word that follows each."""
        return any(name in given and (not words or given[name] in words) for name, words in self.options.items())


def _rows(
    why: str,
    *,
    alone: str = "",
    value: str = "",
    values: str = "",
    rejected: bool = False,
    so_here: Iterable[str] = (),
) -> dict[str, Option]:
    """Return options that share a reason, by name; each text lists names."""
    kinds: tuple[tuple[str, Takes], ...] = ((alone, ""), (value, "value"), (values, "values"))
    return {name: Option(takes, why, rejected, frozenset(so_here)) for names, takes in kinds for name in names.split()}


_GPT = "megads train trains GPT and Llama, not"

HARMLESS: dict[str, Option] = {
    **_rows(
        "kernels are torch's and are chosen by torch",
        alone="""--no-masked-softmax-fusion --no-bias-swiglu-fusion --no-bias-dropout-fusion --no-rope-fusion
            --no-gradient-accumulation-fusion --no-persist-layer-norm --disable-mem-efficient-ln
            --abort-on-unmet-fused-kernel-constraints --cpu_torch_adam --ds_fused_adam""",
        value="--transformer-impl",
    ),
    **_rows(
        "attention is torch's scaled_dot_product_attention, which has flash kernels; ATTENTION=flash takes the "
        "flash-attn package",
        alone="""--use-flash-attn --use-flash-attn-v1 --use-flash-attn-v2 --use-flash-attn-triton
            --use-flash-attn-builder""",
    ),
    **_rows(
        "attention scales and takes its softmax in fp32 inside the kernel",
        alone="--apply-query-key-layer-scaling --no-query-key-layer-scaling --attention-softmax-in-fp32",
    ),
    **_rows(
        "initial weights are drawn the same for every layout",
        alone="--use-cpu-initialization --sync-tp-duplicated-parameters --no-initialization",
    ),
    **_rows("the engine is always DeepSpeed's", alone="--deepspeed --deepspeed_mpi --no-pipeline-parallel"),
    **_rows(
        "communication is torch's and DeepSpeed's, in their own order and buckets",
        alone="""--no-async-tensor-model-parallel-allreduce --tp-comm-overlap --disable-tp-comm-overlap-ag
            --disable-tp-comm-overlap-rs --tp-comm-overlap-rs-dgrad --disable-tp-comm-bulk-dgrad
            --disable-tp-comm-bulk-wgrad --disable-tp-comm-split-ag --disable-tp-comm-split-rs
            --overlap-p2p-communication --no-overlap-p2p-communication --no-delay-grad-reduce --overlap-param-gather
            --delay-param-gather --no-scatter-gather-tensors-in-pipeline --use-ring-exchange-p2p
            --use-contiguous-buffers-in-ddp --no-contiguous-buffers-in-local-ddp --use-tp-pp-dp-mapping
            --no-clone-scatter-output-in-embedding --force-ds-sequence-parallel""",
        value="""--tp-comm-overlap-cfg --ddp-bucket-size --nccl-communicator-config-path --zero-reduce-bucket-size
            --zero-allgather-bucket-size""",
    ),
    **_rows(
        "the pipeline's schedule is 1F1B, which computes the same",
        alone="--enable-zbh1-pipeline --enable-zbh1-exact-semantics",
        value="--num-layers-per-virtual-pipeline-stage",
    ),
    **_rows(
        "the communication backend follows from the device; MEGADS_BACKEND overrides it", value="--distributed-backend"
    ),
    **_rows("ranks come from the launcher", value="--local_rank --local-rank --lazy-mpu-init"),
    **_rows(
        "the format of a token file is read from the file, and token files are always memory-mapped",
        alone="--mmap-warmup --no-mmap-bin-files",
        value="--data-impl",
    ),
    **_rows(
        "the data loader has one way to read; NUM_WORKERS sets its threads",
        alone="--no-create-attention-mask-in-dataloader --repeated-dataloader --return-data-index",
        value="--valid-num-workers --num-dataset-builder-threads --multiprocessing-context",
    ),
    **_rows(
        "checkpoints have one format, which every layout reads and writes in parallel",
        alone="""--use-dist-ckpt --auto-detect-ckpt-format --ckpt-fully-parallel-save --ckpt-fully-parallel-load
            --ckpt-assume-constant-structure --universal-checkpoint --exit-on-missing-checkpoint""",
        value="--dist-ckpt-format",
    ),
    **_rows("the model has one implementation", alone="--use-mcore-models"),
    **_rows(
        "Megatron-DeepSpeed does not read it either",
        alone="--no-load-lr-state --scattered-embeddings --split-transformers --memory-centric-tiled-linear",
        value="--tile-factor",
    ),
    **_rows(
        "throughput, times, stragglers and progress are always logged",
        alone="""--log-throughput --log-progress --log-straggler --disable-straggler-on-startup
            --no-barrier-with-level-1-timing --log-optimizer-states-to-tensorboard --enable-one-logger --test-mode""",
        value="""--timing-log-level --timing-log-option --straggler-ctrlr-port --straggler-minmax-count
            --one-logger-project --one-logger-entity --one-logger-run-name --wandb-save-dir --log-path
            --log-level-replica""",
    ),
    **_rows(
        "signals, `megads stop RUN` and the end of the job save and stop a run",
        alone="--exit-signal-handler --adlr-autoresume",
        value="--adlr-autoresume-interval --kill-switch-path --kill-switch-file",
    ),
    **_rows("ON_NAN sets what happens at NaN or Inf", alone="--no-check-for-nan-in-loss-and-grad"),
    **_rows("weights of data-parallel ranks are equal", value="--check-weight-hash-across-dp-replicas-interval"),
    **_rows(
        "memory is Python's and torch's to manage",
        alone="--manual-gc --no-manual-gc-eval",
        value="--manual-gc-interval --empty-unused-memory-level",
    ),
    **_rows(
        "there are no experts",
        alone="""--create-moe-param-group --disable-moe-token-dropping --disable-moe-top2-2nd-expert-sampling
            --use-tutel --enable-expert-tensor-parallelism --moe-grouped-gemm --moe-per-layer-logging
            --moe-pad-expert-input-to-capacity --moe-layer-recompute --moe-extended-tp""",
        value="""--mlp-type --topk --expert-interval --moe-train-capacity-factor --moe-eval-capacity-factor
            --moe-min-capacity --moe-loss-coeff --moe-router-load-balancing-type --moe-router-topk
            --moe-aux-loss-coeff --moe-z-loss-coeff --moe-input-jitter-eps --moe-token-dispatcher-type
            --moe-expert-capacity-factor --moe-token-drop-policy""",
    ),
    **_rows(
        "nothing is computed in fp8",
        alone="--no-fp8-wgrad",
        value="--fp8-margin --fp8-interval --fp8-amax-history-len --fp8-amax-compute-algo",
    ),
    **_rows("code of a tokenizer's repository is never run", alone="--trust-remote-code"),
    **_rows(
        "the model that Megatron-DeepSpeed trains does not read it either; --init-method-std sets all weights",
        alone="--adjust-word-embedding-init",
        value="--word-embedding-init-std",
    ),
}

REJECTED: dict[str, Option] = {
    **_rows(
        f"{_GPT} BERT or T5",
        alone="--bert-no-binary-head --output-bert-embeddings",
        value="""--bert-embedder-type --mask-prob --short-seq-prob --decoder-num-layers --decoder-seq-length
            --pipeline-model-parallel-split-rank --noise-density --mean-noise-span-length""",
        rejected=True,
    ),
    **_rows(
        f"{_GPT} Retro",
        alone="--retro-add-retriever --retro-no-verify-neighbor-count --retro-return-doc-ids",
        value="""--retro-project-dir --retro-workdir --retro-cyclic-train-iters --retro-encoder-layers
            --retro-encoder-hidden-dropout --retro-encoder-attention-dropout --retro-num-neighbors
            --retro-num-retrieved-chunks --retro-attention-gate""",
        rejected=True,
    ),
    **_rows(
        f"{_GPT} retrievers",
        alone="--biencoder-shared-query-context-model --use-one-sent-docs --retriever-score-scaling",
        value="""--ict-head-size --biencoder-projection-dim --ict-load --bert-load --titles-data-path
            --query-in-block-prob --evidence-data-path --block-data-path --embedding-path --indexer-batch-size
            --indexer-log-interval --retriever-seq-length""",
        values="--retriever-report-topk-accuracies",
        rejected=True,
    ),
    **_rows(f"{_GPT} retrievers", value="--sample-rate", rejected=True, so_here=("1", "1.0")),
    **_rows(
        f"{_GPT} models of images",
        alone="--no-data-sharding --vision-pretraining --dino-norm-last-layer",
        value="""--num-classes --img-h --img-w --img-dim --num-channels --patch-dim --classes-fraction
            --data-per-class-fraction --head-lr-mult --vision-pretraining-type --vision-backbone-type
            --swin-backbone-type --mask-type --mask-factor --iter-per-epoch --dino-local-img-size
            --dino-local-crops-number --dino-head-hidden-size --dino-bottleneck-size --dino-freeze-last-layer
            --dino-warmup-teacher-temp --dino-teacher-temp --dino-warmup-teacher-temp-epochs""",
        rejected=True,
    ),
    **_rows(
        f"{_GPT} students of a teacher",
        alone="--mos --kd",
        value="""--num-layers-teacher --hidden-size-teacher --num-attention-heads-teacher --kd-alpha-ce --kd-beta-ce
            --kd-temp --load-teacher""",
        values="--num-experts-teacher",
        rejected=True,
    ),
    **_rows(
        "megads train trains; it does not generate text",
        alone="--inference --ds-inference",
        value="--inference-batch-times-seqlen-threshold --max-tokens-to-oom",
        rejected=True,
    ),
    **_rows(
        "--skip-train (EVALUATE_ONLY=1) evaluates only",
        value="--eval-only",
        rejected=True,
        so_here=("False", "false", "0"),
    ),
    **_rows(
        "experts are not supported; a dense model has --num-experts 1",
        values="--num-experts",
        rejected=True,
        so_here=("1",),
    ),
    **_rows(
        "experts are not supported; a dense model has 1",
        value="--expert-model-parallel-size --moe-expert-parallel-size --num-experts-switch",
        rejected=True,
        so_here=("1",),
    ),
    **_rows(
        "use --ds-sequence-parallel-size (SP), which splits samples over ranks too",
        value="--context-parallel-size",
        rejected=True,
        so_here=("1",),
    ),
    **_rows(
        "use --ds-sequence-parallel-size (SP) and RECOMPUTE=full for long samples",
        alone="--ds-sequence-parallel-fpdt --ds-sequence-parallel-fpdt-offloading",
        value="--ds-sequence-parallel-fpdt-chunk-size",
        rejected=True,
    ),
    **_rows(
        "fp8 is not supported; use --bf16",
        alone="--fp8-e4m3 --fp8-hybrid",
        value="--fp8-format",
        rejected=True,
    ),
    **_rows(
        "the residual stream has DTYPE; use fp32 without --bf16 and --fp16",
        alone="--fp32-residual-connection",
        rejected=True,
    ),
    **_rows("embeddings have DTYPE; drop it", alone="--embedding-weights-in-fp32", rejected=True),
    **_rows("the loss is computed in fp32; drop it", alone="--fp16-lm-cross-entropy", rejected=True),
    **_rows(
        "norms are LayerNorm or RMSNorm before or after attention and MLP; drop it",
        alone="--apply-layernorm-1p --apply-residual-connection-post-layernorm --embed-layernorm",
        rejected=True,
    ),
    **_rows("use QK_NORM=head, an RMSNorm of each head's queries and keys", alone="--qk-layernorm", rejected=True),
    **_rows("biases are in all linear layers or in none; drop it", alone="--add-qkv-bias", rejected=True),
    **_rows(
        "use --swiglu, --openai-gelu or --no-bias-gelu-fusion (exact GELU)",
        alone="--squared-relu",
        value="--onnx-safe",
        rejected=True,
    ),
    **_rows(
        "use --swiglu; its --ffn-hidden-size is then 8/3 of --hidden-size unless you pass it (4 x in BigScience's)",
        value="--glu-activation",
        rejected=True,
    ),
    **_rows(
        "all of a head is rotated, in two halves; drop it",
        alone="--rotary-interleaved",
        value="--rotary-percent",
        rejected=True,
        so_here=("1", "1.0"),
    ),
    **_rows("initial weights are normal; use --init-method-std", alone="--init-method-xavier-uniform", rejected=True),
    **_rows("data-parallel ranks have the same weights; drop it", alone="--data-parallel-random-init", rejected=True),
    **_rows(
        "all weights have one learning rate; use --lr and --min-lr",
        value="--decoupled-lr --decoupled-min-lr",
        rejected=True,
    ),
    **_rows("use --optimizer adam8bit", alone="--use-bnb-optimizer", rejected=True),
    **_rows(
        "samples are shuffled once for the whole run, which is --dataloader-type single",
        value="--dataloader-type",
        rejected=True,
        so_here=("single",),
    ),
    **_rows(
        "use --train-data-path, --valid-data-path and --test-data-path for full files, or --data-path and --split",
        value="""--train-weighted-split-paths-path --valid-weighted-split-paths-path
            --test-weighted-split-paths-path""",
        values="--train-weighted-split-paths --valid-weighted-split-paths --test-weighted-split-paths",
        rejected=True,
    ),
    **_rows("without --data-path the demo corpus is read", alone="--mock-data", rejected=True),
    **_rows(
        "sample indices are made from --data-path and --seed; use --train-iters for the length",
        value="""--train-data-exact-num-epochs --train-idx-path --train-desc-path --train-doc-idx-path
            --train-sample-idx-path --train-shuffle-idx-path --aml-data-download-path --use-dataset-only""",
        rejected=True,
    ),
    **_rows(
        "every token of every sample counts, but for --eod-mask-loss; drop it",
        alone="""--loss-on-targets-only --reweight-loss-based-on-position-frequency --random-ltd
            --data-efficiency-curriculum-learning""",
        rejected=True,
    ),
    **_rows(
        "use PIPELINE_SPLIT=ends, or a list of layers, e.g. 6,8,8,6",
        alone="--standalone-embedding-stage",
        rejected=True,
    ),
    **_rows("use --ckpt-step for an iteration, --load for a folder", value="--load-tag", rejected=True),
    **_rows("use --train-range-to-skip FIRST LAST", values="--train-iters-to-skip", rejected=True),
    **_rows("use --zero-stage 3, which computes the same", alone="--use-mics", rejected=True),
    **_rows("use --finetune, which starts at iteration 0", alone="--reset-iteration", rejected=True),
    **_rows("use --load with --finetune", value="--pretrained-checkpoint", rejected=True),
    **_rows("the model is described by options; drop it", values="--spec", rejected=True),
    **_rows("pass the options themselves, or --set section.key=value", value="--yaml-cfg", rejected=True),
    **_rows("Megatron-LM dropped it; use --micro-batch-size", value="--batch-size", rejected=True),
    **_rows("Megatron-LM dropped it; use --lr-warmup-fraction", value="--warmup", rejected=True),
    **_rows("Megatron-LM dropped it; use --tensor-model-parallel-size", value="--model-parallel-size", rejected=True),
}

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
