"""Megatron-core's own model loads an export, strictly, and says what ours does."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist

from megads.checkpoint.convert.megatron.export import export_megatron
from megads.checkpoint.convert.megatron.import_ import import_megatron
from megads.checkpoint.convert.megatron.target import Target
from megads.checkpoint.format.reader import Reader
from megads.comm.grid import Grid
from megads.comm.groups import Groups
from megads.config.schema import ModelConfig
from megads.models.bert import BERT
from megads.models.t5 import T5
from megads.parallel.documents import Documents, Lengths
from tests.checkpoint.convert.megatron.samples import GPT2, LLAMA, exported, our_logits, save_ours, tokens_of, weights
from tests.models import shapes

MODELS = {
    "llama": LLAMA,
    "gpt": GPT2,
    "llama-tied-linear": LLAMA.model_copy(
        update={"tied_embeddings": True, "rope_scaling": "linear", "rope_scaling_factor": 4.0}
    ),
    "llama3": LLAMA.model_copy(update={"rope_scaling": "llama3", "rope_scaling_factor": 8.0, "rope_theta": 500000.0}),
    "qwen3": LLAMA.model_copy(update={"qk_norm": "head", "head_dim": 6}),
    "erf": LLAMA.model_copy(update={"activation": "gelu", "head_dim": 6}),
}


@pytest.fixture
def core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Megatron-core with groups of this one process, on the CPU."""
    # It sets variables for other libraries, for the whole process.
    # What it would compile is computed as it is written.
    with patch.dict(os.environ), warnings.catch_warnings(), torch.compiler.set_stance("force_eager"):
        warnings.simplefilter("ignore")
        pytest.importorskip("megatron.core.models.gpt")
        from megatron.core import parallel_state, tensor_parallel

        # Its stream for dropout is a generator of CUDA; nothing is dropped here.
        tracker = SimpleNamespace(fork=nullcontext)
        monkeypatch.setattr(tensor_parallel, "get_cuda_rng_tracker", lambda: tracker)
        # It asks for the device's number in a few places, whatever device it runs on.
        monkeypatch.setattr(torch.cuda, "current_device", lambda: torch.device("cpu"))
        dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
        parallel_state.initialize_model_parallel()
        try:
            yield parallel_state
        finally:
            parallel_state.destroy_model_parallel()
            dist.destroy_process_group()


def _core_config(args: Any) -> Any:
    from megatron.core.transformer.transformer_config import TransformerConfig

    return TransformerConfig(
        num_layers=args.num_layers,
        hidden_size=args.hidden_size,
        num_attention_heads=args.num_attention_heads,
        num_query_groups=args.num_query_groups if args.group_query_attention else None,
        kv_channels=args.kv_channels,
        ffn_hidden_size=args.ffn_hidden_size,
        normalization=args.normalization,
        layernorm_epsilon=args.norm_epsilon,
        gated_linear_unit=args.swiglu,
        activation_func=torch.nn.functional.silu if args.swiglu else torch.nn.functional.gelu,
        add_bias_linear=args.add_bias_linear,
        qk_layernorm=args.qk_layernorm,
        bias_activation_fusion=args.bias_gelu_fusion,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        use_cpu_initialization=True,
        masked_softmax_fusion=False,
        persist_layer_norm=False,
        params_dtype=args.params_dtype,
    )


def _core_model(args: Any) -> torch.nn.Module:
    """Build the model as Megatron does from ``--use-checkpoint-args``."""
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec

    return GPTModel(
        _core_config(args),
        get_gpt_layer_local_spec(normalization=args.normalization, qk_layernorm=args.qk_layernorm),
        vocab_size=args.padded_vocab_size,
        max_sequence_length=args.max_position_embeddings,
        position_embedding_type=args.position_embedding_type,
        share_embeddings_and_output_weights=not args.untie_embeddings_and_output_weights,
        rotary_base=args.rotary_base,
        seq_len_interpolation_factor=args.rotary_seq_len_interpolation_factor,
        rope_scaling=args.use_rope_scaling,
        rope_scaling_factor=args.rope_scaling_factor,
    ).eval()


def _their_logits(path: Path, model: ModelConfig) -> torch.Tensor:
    content = torch.load(path / "mp_rank_00" / "model_optim_rng.pt", weights_only=False)
    assert content["checkpoint_version"] == 3.0
    theirs = _core_model(content["args"])
    theirs.load_state_dict(content["model"], strict=True)
    tokens = tokens_of(model)
    later = torch.ones(1, 1, 12, 12).triu(1).bool()
    with torch.no_grad():
        logits: torch.Tensor = theirs(tokens, torch.arange(12).expand(2, 12), later)
    return logits[..., : model.vocab_size]


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.filterwarnings("ignore")
def test_megatron_core_says_what_ours_does(tmp_path, core, kind):
    model = MODELS[kind]
    ours = save_ours(tmp_path / "ours", model)
    with Reader(ours) as reader:
        theirs = export_megatron(reader, tmp_path / "theirs", Target(style="core"))
    torch.testing.assert_close(_their_logits(theirs, model), our_logits(ours, model), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["llama", "gpt", "qwen3"])
@pytest.mark.filterwarnings("ignore")
def test_what_megatron_core_saves_is_imported(tmp_path, core, kind):
    """A state dict of its own making, with its own initial numbers."""
    model = MODELS[kind]
    ours = save_ours(tmp_path / "ours", model)
    with Reader(ours) as reader:
        path = export_megatron(reader, tmp_path / "theirs", Target(style="core"))
    content = torch.load(path / "mp_rank_00" / "model_optim_rng.pt", weights_only=False)
    torch.manual_seed(5)
    theirs = _core_model(content["args"])
    file = tmp_path / "own" / "iter_0000003" / "mp_rank_00" / "model_optim_rng.pt"
    file.parent.mkdir(parents=True)
    torch.save({**content, "iteration": 3, "model": theirs.state_dict()}, file)
    done = import_megatron(tmp_path / "own", tmp_path / "back")
    tokens, later = tokens_of(model), torch.ones(1, 1, 12, 12).triu(1).bool()
    with torch.no_grad():
        expected = theirs(tokens, torch.arange(12).expand(2, 12), later)[..., : model.vocab_size]
    torch.testing.assert_close(our_logits(done.path, done.model), expected, rtol=1e-5, atol=1e-5)
    assert weights(done.path).keys() == weights(ours).keys()


def _core_bert(args: Any) -> Any:
    from megatron.core.models.bert.bert_layer_specs import bert_layer_local_spec
    from megatron.core.models.bert.bert_model import BertModel

    return BertModel(
        _core_config(args),
        2 if args.bert_binary_head else 0,
        bert_layer_local_spec,
        args.padded_vocab_size,
        args.max_position_embeddings,
        share_embeddings_and_output_weights=not args.untie_embeddings_and_output_weights,
        add_binary_head=args.bert_binary_head,
    ).eval()


def _core_t5(args: Any) -> Any:
    from megatron.core.models.T5 import t5_spec
    from megatron.core.models.T5.t5_model import T5Model
    from megatron.core.transformer.transformer_block import TransformerBlockSubmodules

    config, encoder = _core_config(args), _core_config(args)
    config.num_layers, encoder.num_layers = args.decoder_num_layers, args.encoder_num_layers
    layers = t5_spec.encoder_model_with_local_spec(), t5_spec.decoder_model_with_local_spec()
    counts = args.encoder_num_layers, args.decoder_num_layers
    specs = [
        TransformerBlockSubmodules([layer] * count, layer_norm=t5_spec.LNImpl)
        for layer, count in zip(layers, counts, strict=True)
    ]
    return T5Model(
        config,
        encoder,
        *specs,
        args.padded_vocab_size,
        args.max_position_embeddings,
        share_embeddings_and_output_weights=not args.untie_embeddings_and_output_weights,
    ).eval()


def _loaded(path: Path, build: Any) -> Any:
    content = torch.load(path / "mp_rank_00" / "model_optim_rng.pt", weights_only=False)
    theirs = build(content["args"])
    theirs.load_state_dict(content["model"], strict=True)
    return theirs


def _module(kind: Any, path: Path, model: ModelConfig) -> Any:
    module = kind(model, Groups(Grid(), 0))
    module.load_state_dict({name: torch.from_numpy(each.copy()) for name, each in weights(path).items()})
    return module.eval()


@pytest.mark.parametrize("binary_head", [True, False])
@pytest.mark.filterwarnings("ignore")
def test_its_bert_says_what_ours_does(tmp_path, core, binary_head):
    changed = {"activation": "gelu_tanh", "binary_head": binary_head, "token_types": 2 * binary_head}
    model = shapes.BERT.model_copy(update=changed)
    ours = save_ours(tmp_path / "ours", model)
    theirs = _loaded(exported(ours, tmp_path / "theirs", style="core"), _core_bert)
    draw = torch.Generator().manual_seed(3)
    text, types = (torch.randint(most, (3, 12), generator=draw) for most in (model.vocab_size, 2))
    lengths = Lengths(torch.tensor([12, 7, 2]), 12)
    real = lengths.mask[:, 0, 0]
    with torch.no_grad():
        expected, pairs = theirs(text, real.long(), types if binary_head else None)
        documents = Documents(lengths=lengths, types=types if binary_head else None)
        ours_says = _module(BERT, ours, model)(text, documents=documents)
    found, found_pairs = ours_says if binary_head else (ours_says, None)
    torch.testing.assert_close(found[real][:, :53], expected[real][:, :53], rtol=1e-5, atol=2e-5)
    if binary_head:
        torch.testing.assert_close(found_pairs, pairs, rtol=1e-5, atol=2e-5)
    # A state dict of its own making, with its own numbers, comes in and goes out as it was.
    _comes_back(tmp_path, theirs)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.filterwarnings("ignore")
def test_its_t5_says_what_ours_does(tmp_path, core, tied):
    model = shapes.T5.model_copy(update={"tied_embeddings": tied})
    ours = save_ours(tmp_path / "ours", model)
    theirs = _loaded(exported(ours, tmp_path / "theirs", style="core"), _core_t5)
    draw = torch.Generator().manual_seed(3)
    text, start = (torch.randint(model.vocab_size, (3, size), generator=draw) for size in (16, 8))
    lengths = Lengths(torch.tensor([16, 9, 2]), 16)
    hidden = ~lengths.mask[:, 0, 0]
    own, later = hidden[:, None].expand(-1, 16, -1), torch.ones(8, 8).triu(1).bool().expand(3, -1, -1)
    with torch.no_grad():
        expected = theirs(text, start, own[:, None], later[:, None], hidden[:, None, None].expand(-1, 1, 8, -1))
        found = _module(T5, ours, model)(torch.cat([text, start], dim=1), documents=Documents(lengths=lengths))
    torch.testing.assert_close(found[..., :53], expected[..., :53], rtol=1e-5, atol=2e-5)
    _comes_back(tmp_path, theirs)


def _comes_back(tmp_path: Path, theirs: Any) -> None:
    file = next((tmp_path / "theirs").rglob("model_optim_rng.pt"))
    content = torch.load(file, weights_only=False)
    with torch.no_grad():
        for each in theirs.parameters():
            each.add_(0.01)
    state = theirs.state_dict()
    torch.save({**content, "model": state}, file)
    done = import_megatron(tmp_path / "theirs", tmp_path / "back")
    again = exported(done.path, tmp_path / "again", style="core")
    found = torch.load(again / "mp_rank_00" / "model_optim_rng.pt", weights_only=False)["model"]
    tensors = {name for name, each in state.items() if isinstance(each, torch.Tensor)}
    assert tensors == {name for name, each in found.items() if isinstance(each, torch.Tensor)}
    for name in tensors:
        rows = 53 if state[name].shape[0] in (56, 64) and "layers" not in name else len(state[name])
        assert torch.equal(state[name][:rows], found[name][:rows]), name
