"""Beam search, scored as transformers does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from megads.errors import ConfigError
from megads.inference.engine import check_prompt
from megads.inference.runner import Runner


@dataclass(frozen=True)
class Beam:
    """A continuation of a prompt.

    Attributes:
        output: its tokens, the one that ended it among them.
        score: sum of their log-probabilities / number of tokens ** length_penalty.
    """

    output: tuple[int, ...]
    score: float


@torch.inference_mode()
def beam_search(
    runner: Runner,
    prompt: Sequence[int],
    *,
    width: int,
    max_tokens: int,
    eos: Sequence[int] = (),
    length_penalty: float = 1.0,
    early_stopping: bool = False,
) -> list[Beam]:
    """Return the ``width`` best continuations, best first. All ranks of the model call it.

    Args:
        runner: with at least ``width`` slots, none in use.
        prompt: tokens.
        width: beams that are followed.
        max_tokens: at most generated.
        eos: tokens that end a beam.
        length_penalty: above 0 prefers long continuations, below 0 short ones.
        early_stopping: stop as soon as ``width`` continuations have ended; else when none that runs can
            beat them.

    Raises:
        ConfigError: the cache has fewer slots, or see ``check_prompt``.
    """
    if not 1 <= width <= runner.num_slots:
        raise ConfigError(f"beam width {width}: use 1 to {runner.num_slots}, the requests that run at a time")
    check_prompt(prompt, runner, max_tokens)
    text, prompt = runner.parts_of(prompt)
    most = min(max_tokens, runner.context - len(prompt))
    hidden = runner.prefill([prompt], 0, [text])[:, -1]
    running = [Beam((), 0.0)]
    ended: list[Beam] = []
    for length in range(1, most + 1):
        # Ends of a beam take places among the candidates: so many that width others remain.
        candidates = _expanded(runner, running, hidden, max(2, 1 + len(eos)) * width)
        going: list[tuple[int, Beam]] = []
        for place, (source, beam) in enumerate(candidates):
            is_end = beam.output[-1] in eos
            if (is_end or length == most) and place < width:
                ended.append(Beam(beam.output, beam.score / length**length_penalty))
            if not is_end and len(going) < width:
                going.append((source, beam))
        ended = sorted(ended, key=lambda each: -each.score)[:width]
        running = [beam for _, beam in going]
        best = max((each.score for each in running), default=-torch.inf) / length**length_penalty
        if not running or (len(ended) == width and (early_stopping or best <= ended[-1].score)):
            break
        if length < most:
            runner.cache.reorder(torch.tensor([source for source, _ in going]), len(prompt) + length - 1)
            hidden = runner.decode([each.output[-1] for each in running], [len(prompt) + length - 1] * len(running))
    return ended


def _expanded(runner: Runner, running: Sequence[Beam], hidden: torch.Tensor, count: int) -> list[tuple[int, Beam]]:
    """Return the best ``count`` continuations by one token, and the slot that each continues; the same on every rank.

    A beam's score is the sum of its log-probabilities here.
    """
    count = min(count, len(running) * runner.vocab_size)
    found = torch.zeros(2, count, dtype=torch.float64)
    if runner.is_last_stage:
        scores = runner.logits(hidden).log_softmax(dim=-1)
        scores += torch.tensor([each.score for each in running], device=scores.device).unsqueeze(1)
        values, places = scores.flatten().topk(count)
        found[0], found[1] = values, places
    values, places = runner.share(found).tolist()
    split = [divmod(int(place), runner.vocab_size) for place in places]
    return [
        (source, Beam((*running[source].output, token), value))
        for value, (source, token) in zip(values, split, strict=True)
    ]
