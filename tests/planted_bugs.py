"""The bugs that `tests/mutations.py` plants, and the tests that must notice each of them."""

from __future__ import annotations

from dataclasses import dataclass

LAYOUT = "tests/parity/test_layouts.py::test_a_layout_trains_like_one_rank"
LONG = "tests/parity/test_layouts.py::test_every_layout_trains_like_one_rank"


@dataclass(frozen=True)
class Mutation:
    """A bug: ``old``, which stands once in ``file``, becomes ``new``; ``tests`` must notice."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


def layout(word: str, where: str = LAYOUT) -> tuple[str, ...]:
    """Return the arguments that run the layouts of the matrix whose id holds ``word``."""
    return (where, "-k", word)


def documents(word: str) -> tuple[str, ...]:
    """Return the arguments that run the tests of packed documents whose id holds ``word``."""
    return ("tests/engine/test_micro_batches.py", "-k", word)


def bert(word: str) -> tuple[str, ...]:
    """Return the arguments that run the layouts of BERT whose id begins with ``word``."""
    return ("tests/models/test_bert.py", "-k", f"test_a_cut_model_matches_one_rank and {word}")


def t5(word: str) -> tuple[str, ...]:
    """Return the arguments that run the layouts of T5 whose id begins with ``word``."""
    return ("tests/models/test_t5.py", "-k", f"test_a_cut_model_is_the_whole_one and {word}")


def on_device(file: str, word: str) -> tuple[str, ...]:
    """Return the arguments that run the tests of a file on the simulated device whose id holds ``word``."""
    return (f"tests/simgpu/{file}.py", "-k", word)


MUTATIONS = (
    Mutation(
        "gradients average over the data axis and not over the sequence axis",
        "megads/engine/deepspeed/package.py",
        '"data_parallel": "data_seq",',
        '"data_parallel": "data",',
        layout("gqa-tp1pp2sp2dp1-z1"),
    ),
    Mutation(
        "the loss is a mean over ranks of means over their tokens",
        "megads/engine/micro_batches.py",
        "dist.all_reduce(found, group=self.groups.data_seq)",
        "found *= self.groups.data_seq_size",
        layout("eod_mask_loss"),
    ),
    Mutation(
        "every sequence rank counts the pairs, each of another token",
        "megads/engine/micro_batches.py",
        "if groups.seq_rank == 0 else torch.full_like(batch[:, row.is_random], -1)",
        "",
        ("tests/parity/test_bert_layouts.py", "-k", "test_each_term and sp2dp2"),
    ),
    Mutation(
        "types of tokens are those of the first sequence rank",
        "megads/engine/micro_batches.py",
        "types = batch[:, row.types][:, mine]",
        "types = batch[:, row.types][:, : row.seq_length // groups.seq_size]",
        ("tests/engine/test_micro_batches.py", "-k", "test_a_row_of_bert_in_parts"),
    ),
    Mutation(
        "the terms of the loss are those of one stage's ranks",
        "megads/engine/loss_terms.py",
        'dist.all_reduce(found, group=groups.process_group("pipe"))',
        "pass",
        ("tests/parity/test_bert_layouts.py", "-k", "test_each_term and pp2"),
    ),
    Mutation(
        "of the rows of T5 every sequence rank reads the decoder's first",
        "megads/engine/micro_batches.py",
        "batch[:, row.text_dec][:, said]",
        "batch[:, row.text_dec][:, : said.stop - said.start]",
        ("tests/engine/test_micro_batches.py", "-k", "test_a_row_of_t5_in_parts"),
    ),
    Mutation(
        "whole parameters count in the gradient norm once per tensor rank",
        "megads/engine/marks.py",
        "sharded or tensor_rank == 0",
        "True",
        layout("llama-tp2pp1sp1dp1-z0"),
    ),
    Mutation(
        "the gradient of the tied output does not reach the embedding",
        "megads/engine/deepspeed/stage.py",
        "            self.tied.add_gradients()\n",
        "            self.tied._collected = None\n",
        layout("gpt-tp2pp2sp1dp1-z1"),
    ),
    Mutation(
        "the tied output keeps its old weight",
        "megads/engine/deepspeed/stage.py",
        "            self.tied.share()\n",
        "            pass\n",
        layout("gpt-tp2pp2sp1dp1-z1"),
    ),
    Mutation(
        "micro-batches of a pipeline are summed, not averaged",
        "megads/engine/deepspeed/stage.py",
        "loss = self.loss / self.gradient_accumulation_steps()",
        "loss = self.loss",
        layout("llama-tp1pp2sp1dp1-z1"),
    ),
    Mutation(
        "the last stage is told of no documents",
        "megads/engine/deepspeed/stage.py",
        "documents=part.documents, ",
        "documents=None if self.stage_id else part.documents, ",
        documents("like_documents_alone and pp2-full"),
    ),
    Mutation(
        "stages take the documents of another micro-batch",
        "megads/engine/deepspeed/pipeline.py",
        "engine.module.parts, engine.module.terms = iter(parts), ",
        "engine.module.parts, engine.module.terms = iter(parts[::-1]), ",
        documents("like_documents_alone and pp2-full"),
    ),
    Mutation(
        "every data rank draws the dropout of the first one's samples",
        "megads/engine/micro_batches.py",
        "(index * self.groups.data_size + self.groups.data_rank) * len",
        "index * self.groups.data_size * len",
        ("tests/parity/test_drawn_layouts.py::test_dropout_is_the_same_on_every_data_rank_and_stage", "-k", "dp2"),
    ),
    Mutation(
        "every tensor rank adds its loss of a sample",
        "megads/engine/evaluation.py",
        "if found is not None and groups.tensor_rank == 0:",
        "if found is not None:",
        documents("evaluated and tp2-sp2"),
    ),
    Mutation(
        "a data rank reads the samples of its neighbour",
        "megads/data/loading/batches.py",
        "first = consumed + self.data_rank * self.micro_batch",
        "first = consumed",
        ("tests/data/loading/test_batches.py",),
    ),
    Mutation(
        "a moment of a checkpoint is not taken",
        "megads/checkpoint/load.py",
        "            if kind not in kinds:\n",
        '            if kind not in kinds or kind == "exp_avg_sq":\n',
        ("tests/parity/test_resume_bitwise.py", "-k", "every_step and fp32"),
    ),
    Mutation(
        "the weights in half precision do not follow what was loaded",
        "megads/engine/deepspeed/state.py",
        "            self.engine.optimizer.update_lp_params()\n",
        "            pass\n",
        ("tests/engine/test_state.py", "-k", "is_everywhere"),
    ),
    Mutation(
        "a fused part is looked for where the one before it is",
        "megads/checkpoint/format/shard_layout.py",
        "            local, whole = local + size, whole + part\n",
        "            local, whole = local + size, whole\n",
        ("tests/checkpoint/format/test_shard_layout.py",),
    ),
    Mutation(
        "blocks of a checkpoint are not compared with their checksums",
        "megads/checkpoint/format/blocks.py",
        "            if zlib.crc32(out[at : at + self.block_bytes]) != self.checksums[number]:\n",
        "            if False:\n",
        ("tests/checkpoint/format/test_blocks.py",),
    ),
    Mutation(
        "a step that is left out moves the loss scale",
        "megads/engine/deepspeed/skipped_step.py",
        "        else:\n            self._update(has_overflow)\n",
        "            self._update(True)\n        else:\n            self._update(has_overflow)\n",
        ("tests/engine/test_rejected_step.py", "-k", "dp2-zero1-fp16"),
    ),
    Mutation(
        "patience with the loss scale comes back with every good step",
        "megads/engine/loss_scale.py",
        "        scaler.cur_hysteresis = scaler.delayed_shift\n",
        "    if not overflow:\n        scaler.cur_hysteresis = scaler.delayed_shift\n",
        ("tests/engine/test_loss_scale.py", "-k", "the_scale_follows"),
    ),
    Mutation(
        "the native engine does not divide gradients by the data-parallel ranks",
        "megads/engine/native/engine.py",
        "self.loss_scale * self.groups.data_seq_size",
        "self.loss_scale",
        ("tests/engine/test_zero_stages.py", "-k", "every_stage and dp2-zero1-native"),
    ),
    Mutation(
        "a later micro-batch of the native engine replaces the sum of those before",
        "megads/engine/native/reduce.py",
        "            if arrivals.count:\n                view.add_(grad)\n",
        "            if False:\n                view.add_(grad)\n",
        ("tests/engine/test_zero_stages.py", "-k", "every_stage and dp2-zero0-native"),
    ),
    Mutation(
        "a rejected step of the native engine moves the loss scale",
        "megads/engine/native/engine.py",
        "if self.scaler is not None and not rejected:",
        "if self.scaler is not None:",
        ("tests/engine/test_rejected_step.py", "-k", "dp2-zero1-fp16 and native"),
    ),
    Mutation(
        "gradients for the Hessian are clipped by the native engine",
        "megads/engine/native/optimizers.py",
        "        engine.clip_grad, self.optimizer.tokens = 0.0, tokens\n",
        "        self.optimizer.tokens = tokens\n",
        ("tests/engine/optim/test_sophia.py", "-k", "follows_the_paper and dp2-z3-native"),
    ),
    Mutation(
        "under ZeRO 0 the native engine saves elements as those of the first rank",
        "megads/engine/native/state.py",
        "first, start, stop = first + left - start, left, max(left, right)",
        "start, stop = left, max(left, right)",
        ("tests/engine/test_state.py", "-k", "is_everywhere and dp3-zero0 and native"),
    ),
    Mutation(
        "a sequence that takes another slot leaves its text behind",
        "megads/inference/cross_cache.py",
        "        self._copy_texts([target], [source])\n",
        "",
        ("tests/inference/test_encoder_decoder.py", "-k", "come_and_go"),
    ),
    Mutation(
        "a decoder's relative positions are counted from the longest sequence of the batch",
        "megads/inference/cache.py",
        "self._lengths = lengths.cpu()",
        "self._lengths = lengths.cpu().clamp(min=longest)",
        ("tests/inference/test_encoder_decoder.py", "-k", "come_and_go"),
    ),
    Mutation(
        "a mask is filled with what the token before it would be",
        "megads/inference/fill_mask.py",
        "hidden[which[:, 0], which[:, 1]]",
        "hidden[which[:, 0], which[:, 1] - 1]",
        ("tests/inference/test_fill_mask.py", "-k", "are_transformers"),
    ),
    Mutation(
        "the masked-LM model looks at the padding of shorter texts",
        "megads/inference/runner.py",
        "Documents(lengths=self._lengths(rows))",
        "Documents()",
        ("tests/inference/test_fill_mask.py", "-k", "are_transformers"),
    ),
    Mutation(
        "a rollback trains on the data of the bad step again",
        "megads/train/loop.py",
        'self.skip_to(min(last, t.run.train.train_iters), batches, "the rollback")',
        "batches.seek(t.progress.consumed_samples)",
        ("tests/train/fault/test_rollback.py", "-k", "rollback_is_told"),
    ),
    Mutation(
        "the losses that a run judges by are forgotten on resume",
        "megads/checkpoint/resume/progress.py",
        'tuple(progress.get("recent_losses", ()))',
        "()",
        ("tests/train/fault/test_anomaly.py", "-k", "after_a_resume"),
    ),
    Mutation(
        "the marks of parameters are lost where a move makes new ones",
        "megads/engine/marks.py",
        "            vars(parameter).update(vars(before[name]))\n",
        "            pass\n",
        ("tests/engine/test_marks.py", "-k", "keep_their_marks"),
    ),
    Mutation(
        "a micro-batch's loss is read from the device",
        "megads/engine/deepspeed/engine.py",
        "                total += loss.detach()\n",
        "                total += loss.item()\n",
        ("tests/simgpu/test_host_waits.py", "-k", "bf16-zero1"),
    ),
    Mutation(
        "a gradient that is not finite, but in no norm, is not looked for",
        "megads/engine/deepspeed/host_read.py",
        "        if bad and bool(read[len(tensors)]):\n",
        "        if bad and not bad:\n",
        ("tests/engine/deepspeed/test_host_read.py", "-k", "in_no_norm"),
    ),
    Mutation(
        "the gradients of norms are not summed over the ranks that have parts of them",
        "megads/engine/partial_gradients.py",
        "        dist.all_reduce(flat, group=self.weights[0].partial_over)  # type: ignore[attr-defined]\n",
        "",
        ("tests/engine/test_partial_gradients.py", "-k", "one_rank and heads"),
    ),
    Mutation(
        "a save writes before the device's copies are there",
        "megads/checkpoint/save.py",
        "            self.ready()\n",
        "",
        ("tests/simgpu/test_saves.py", "-k", "wait_for_nothing"),
    ),
    Mutation(
        "the activation that has just come is thrown away with the one whose gradient was sent",
        "megads/engine/deepspeed/stage.py",
        """                buffers["inputs"][at] = x.requires_grad_()\n""",
        """                buffers["inputs"][at] = torch.zeros_like(x).requires_grad_()\n""",
        ("tests/engine/deepspeed/test_pipeline.py", "-k", "stages_train_like_one_rank and pp2"),
    ),
    Mutation(
        "ZeRO 3 gathers weights before the update has changed them",
        "megads/engine/deepspeed/engine.py",
        "        self.state.weights_changed()\n",
        "",
        ("tests/engine/deepspeed/test_zero.py", "-k", "gathers_of_a_queue"),
    ),
    Mutation(
        "the marks of parameters are lost on the way to a device",
        "megads/engine/marks.py",
        "            vars(parameter).update(vars(before[name]))\n",
        "            pass\n",
        on_device("test_parity", "new_parameters"),
    ),
    Mutation(
        "the marks of loaded parameters are lost on the way to a device",
        "megads/inference/load.py",
        "        vars(parameter).update(marks[name])  # on some devices it is a new object\n",
        "        pass\n",
        on_device("test_generate", "llama3"),
    ),
    Mutation(
        "a layer is computed while its weights are on their way",
        "megads/engine/native/gather.py",
        "        self._wait_for([index])\n        for unit in self.blocks[index] if",
        "        for unit in self.blocks[index] if",
        on_device("test_parity", "gqa and dp2 and native"),
    ),
    Mutation(
        "updated weights are used before they have come",
        "megads/engine/native/gather.py",
        "for work in self.under_way.pop(index, ()):",
        "for work in self.under_way.pop(index, ()) if self.stage == 3 else ():",
        on_device("test_parity", "dp2 and native"),
    ),
    Mutation(
        "gradients are clipped while they are being summed",
        "megads/engine/native/reduce.py",
        "        if reduction.work is not None:\n            reduction.work.wait()\n",
        "",
        on_device("test_parity", "dp2 and native"),
    ),
    Mutation(
        "the host reads loss and norm before they are copied",
        "megads/engine/native/update.py",
        "        done()\n",
        "",
        on_device("test_parity", "native and z0"),
    ),
    Mutation(
        "a unit is reduced at the end of the step only",
        "megads/engine/native/reduce.py",
        "            if first.missing or first.is_held:\n                return\n",
        "            if first.unit:\n                return\n",
        on_device("test_order", "reduced and 1"),
    ),
)

_UNCHANGED = "TokenPositions(self.seq_rank"
NO_BUG = Mutation("no bug", "megads/models/attention.py", _UNCHANGED, _UNCHANGED, layout("llama-tp1pp1sp2dp1-z1"))
"""What must not be caught."""
