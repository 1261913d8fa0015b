"""A model that is ready to generate on this rank: ranks joined, weights read, tokenizer made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from megads.cluster.hosts import this_host
from megads.cluster.ranks import RankInfo, find_ranks
from megads.comm.groups import Groups, join_ranks
from megads.comm.messages import all_gather_values
from megads.comm.presence import Presence
from megads.comm.rendezvous import connect_again, store_listens
from megads.config.schema import RunConfig
from megads.data.chat.folder_template import ChatTemplate
from megads.data.chat.trained import folder_of, form_of, trained_template
from megads.data.tokenizers.base import Tokenizer, TokenizerSpec
from megads.data.tokenizers.build import make_tokenizer
from megads.data.tokenizers.word_pieces import first_of_decoder
from megads.errors import ConfigError
from megads.families.table import FAMILIES
from megads.inference.encoder_decoder import EncoderDecoderRunner
from megads.inference.load import DTYPES, CheckpointWeights, Weights, load_model, open_weights
from megads.inference.packed import pack
from megads.inference.replay import check_loaded
from megads.inference.retro.runner import RetroRunner
from megads.inference.runner import Runner
from megads.inference.tokenizer import spec_given
from megads.models.bert import BERT
from megads.models.gpt import GPT
from megads.models.retro import Retro
from megads.models.t5 import T5


@dataclass(frozen=True)
class SessionRequest:
    """What to load, and how.

    Attributes:
        source: a run, a folder of checkpoints, a checkpoint, of Megatron too, or a Hugging Face folder.
        step: the iteration to take; None: the newest.
        tensor: tensor-parallel ranks.
        pipeline: pipeline stages.
        dtype: fp32, bf16 or fp16; empty: the one of training.
        tokenizer: file or folder, or what it is made of; empty: the model's own.
        num_slots: sequences at a time, on every replica.
        context: most tokens of a sequence; 0: as in training.
        sequence: ranks that share every sequence (Ulysses); more than one can score texts, not generate.
        replicas: of the model; 0: as many as the ranks that started make.
        timeout_s: longest wait for another rank; 0: the default.
        uses: the kinds of models that the caller has a use for, see ``megads.families.family.Family.samples``.
        model: settings of the model that differ from those of training: how many neighbours it looks at, and how much.
        replays: whether the model must compute what its run computed, where its checkpoint has a stored batch.
    """

    source: Path
    step: int | None = None
    tensor: int = 1
    pipeline: int = 1
    dtype: str = ""
    tokenizer: str | TokenizerSpec = ""
    num_slots: int = 16
    context: int = 0
    sequence: int = 1
    replicas: int = 0
    timeout_s: float = 0.0
    uses: tuple[str, ...] = ("causal",)
    model: Mapping[str, Any] = field(default_factory=dict)
    replays: bool = True


@dataclass(frozen=True)
class Session:
    """A model on this rank.

    Attributes:
        runner: of the model.
        groups: ``data`` are replicas, each of which generates for its own requests.
        tokenizer: of the model.
        eos: tokens that end a text.
        summary: what was loaded, in one line.
        tokenizer_path: file or folder of the tokenizer; empty: it has none.
        notes: lines worth showing about the weights.
        timeout_s: longest wait for another rank.
        path: of the weights.
        chat: the chat template that the model was trained with; None: the one next to its tokenizer, if there is one.
    """

    runner: Runner
    groups: Groups
    tokenizer: Tokenizer
    eos: tuple[int, ...]
    summary: str
    tokenizer_path: str = ""
    notes: tuple[str, ...] = ()
    timeout_s: float = 600.0
    path: str = ""
    chat: ChatTemplate | None = None

    @property
    def template(self) -> ChatTemplate:
        """The template of its chats; one without a text where it has none."""
        return self.chat or ChatTemplate(folder_of(self.tokenizer_path))

    @property
    def speaks(self) -> bool:
        """Whether this rank prints."""
        return self.groups.rank == 0

    @property
    def continues(self) -> bool:
        """Whether an output continues its prompt; else an encoder has read that, and the output stands alone."""
        return not (self.fills_masks or isinstance(self.runner, EncoderDecoderRunner))

    @property
    def fills_masks(self) -> bool:
        """Whether it is an encoder that puts tokens in the place of masks, and generates no text."""
        return isinstance(self.runner.module, BERT)

    @property
    def end(self) -> int:
        """The token that ends a text.

        Raises:
            ConfigError: there is none.
        """
        return self.tokenizer.eod if self.continues else self.eos[0]


def open_session(wanted: SessionRequest, env: Mapping[str, str]) -> Session:
    """Join the other ranks, if there are any, and load the model. Collective.

    Raises:
        ConfigError: the layout does not fit the ranks or the model.
        CheckpointError, DataError, DependencyError: weights or tokenizer cannot be read.
    """
    info = find_ranks(env)
    weights = open_weights(wanted.source, wanted.step)
    _check_use(weights, wanted.uses)
    _change_model(weights, wanted)
    spec = _spec(wanted.tokenizer, weights)
    tokenizer = make_tokenizer(spec)
    context = _context(wanted.context, weights)
    run = _layout(wanted, info)
    vendor, device, groups = join_ranks(run, info, env)
    dtype = wanted.dtype or weights.dtype
    module = load_model(weights, groups, device, DTYPES[dtype])
    # With two threads one benchmark in many gave other texts than transformers, for a reason not found.
    if torch.get_num_threads() == 1 and not isinstance(module, BERT):
        pack(module, wanted.num_slots)
    runner = _runner(module, groups, context, wanted.num_slots, weights, tokenizer)
    size = sum(weight.numel() for weight in module.parameters())
    shares = f" SP={wanted.sequence}" if wanted.sequence > 1 else ""
    layout = f", TP={wanted.tensor} PP={wanted.pipeline}{shares} x {groups.data_size}" if info.world_size > 1 else ""
    held = f"{size / 1e6:.4g} M parameters per rank in {dtype} on {vendor.name}"
    summary = f"{weights.path}: {held}, context {context}{layout}"
    notes = tuple(weights.notes()) if groups.rank == 0 else ()
    if wanted.replays and isinstance(weights, CheckpointWeights):
        check_loaded(weights, runner, dtype)
    weights.close()
    ends = () if isinstance(module, BERT) else weights.ends(_end(tokenizer, module))
    chat = None
    if isinstance(weights, CheckpointWeights) and (form := form_of(weights.manifest.settings)):
        chat, more = trained_template(form, tokenizer, spec.model)
        ends = tuple(dict.fromkeys((*ends, *more)))
    timeout_s = run.launch.timeout_s
    return Session(runner, groups, tokenizer, ends, summary, spec.model, notes, timeout_s, str(weights.path), chat)


def watch_ranks(session: Session, env: Mapping[str, str]) -> Presence | None:
    """Return what names a rank that is gone, started; None for one rank. All ranks call it."""
    if session.groups.world is None:
        return None
    hosts = all_gather_values(this_host())
    rank = session.groups.rank
    presence = Presence(partial(connect_again, env, rank), rank, hosts, partial(store_listens, env, rank))
    presence.start()
    return presence


_CURES = {
    "bert": "`megads generate` has it fill [MASK] in a text",
    "t5": "`megads generate` and `megads serve` have it answer texts",
    "retro": "`megads generate` and `megads evaluate --qa` give it neighbours",
}
"""What another kind of model than those that are of use is for."""


def _check_use(weights: Weights, uses: tuple[str, ...]) -> None:
    model = weights.model
    if model.num_classes:
        raise ConfigError(
            f"{weights.path}: a classifier of {model.num_classes} classes writes no text; `megads finetune` scores it"
        )
    kind = FAMILIES[model.family].samples
    if kind not in uses:
        raise ConfigError(
            f"{weights.path}: a model of the family {model.family} does not predict a text from its beginning"
            f"{' alone' if kind == 'retro' else ''}; {_CURES[kind]}, or use a decoder, such as gpt or llama"
        )


def _change_model(weights: Weights, wanted: SessionRequest) -> None:
    """Let the model look at neighbours as asked for.

    Raises:
        ConfigError: it looks at none, or its layers would lie on several stages.
    """
    is_retro = FAMILIES[weights.model.family].samples == "retro"
    if is_retro and wanted.pipeline > 1:
        raise ConfigError(f"PP={wanted.pipeline}: layers of retro share the encoder of one of them; use PP=1")
    if wanted.model and not is_retro:
        raise ConfigError(f"{weights.path}: a model of the family {weights.model.family} looks at no neighbours")
    weights.model = weights.model.model_copy(update=dict(wanted.model))


def _runner(
    module: GPT, groups: Groups, context: int, num_slots: int, weights: Weights, tokenizer: Tokenizer
) -> Runner:
    if isinstance(module, BERT):
        return Runner(module, groups, context=context, num_slots=0)
    if isinstance(module, Retro):
        return RetroRunner(module, groups, context=context, num_slots=num_slots)
    if not isinstance(module, T5):
        return Runner(module, groups, context=context, num_slots=num_slots)
    first = first_of_decoder(tokenizer.specials)
    start = weights.start(-1 if first is None else first)
    if not 0 <= start < module.config.vocab_size:
        raise ConfigError(
            f"{weights.path}: its tokenizer has no token for the beginning of a text or padding, with one of which the "
            "decoder begins; pass another one with --tokenizer"
        )
    return EncoderDecoderRunner(module, groups, context=context, num_slots=num_slots, start=start)


def _end(tokenizer: Tokenizer, module: GPT) -> int:
    """Return the token that ended texts in training."""
    eos = tokenizer.specials.eos
    return tokenizer.eod if eos is None or not isinstance(module, T5) else eos


def _spec(wanted: str | TokenizerSpec, weights: Weights) -> TokenizerSpec:
    if isinstance(wanted, TokenizerSpec):
        # Only a tokenizer without files needs to be told how many ids there are.
        return replace(wanted, vocab_size=weights.model.vocab_size) if wanted.type == "NullTokenizer" else wanted
    return spec_given(wanted) if wanted else weights.tokenizer()


def _layout(wanted: SessionRequest, info: RankInfo) -> RunConfig:
    model_ranks = wanted.tensor * wanted.pipeline * wanted.sequence
    shares = f" x SP={wanted.sequence}" if wanted.sequence > 1 else ""
    replicas, rest = divmod(info.world_size, model_ranks)
    if rest:
        raise ConfigError(
            f"TP={wanted.tensor} x PP={wanted.pipeline}{shares} does not divide the {info.world_size} ranks that "
            f"started; start a multiple of {model_ranks}"
        )
    if wanted.replicas and replicas != wanted.replicas:
        raise ConfigError(
            f"DP={wanted.replicas} x TP={wanted.tensor} x PP={wanted.pipeline}{shares} are "
            f"{wanted.replicas * model_ranks} ranks, and {info.world_size} started; start as many, or leave DP unset"
        )
    plain = RunConfig()
    axes = {"tensor": wanted.tensor, "pipeline": wanted.pipeline, "data": replicas, "sequence": wanted.sequence}
    wait = {"timeout_s": wanted.timeout_s or plain.launch.timeout_s}
    sections = {"parallel": plain.parallel.model_copy(update=axes), "launch": plain.launch.model_copy(update=wait)}
    return plain.model_copy(update=sections)


def _context(wanted: int, weights: Weights) -> int:
    if weights.longest and wanted > weights.longest:
        what = "learned positions for" if weights.model.position_embedding == "learned" else "a sliding window of"
        raise ConfigError(
            f"--context {wanted}: the model has {what} {weights.longest} tokens; use at most {weights.longest}"
        )
    return wanted or weights.context
