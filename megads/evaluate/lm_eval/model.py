"""lm-eval's model ``megads``: rank 0 runs the tasks, and all ranks compute what they ask for."""

from __future__ import annotations

import atexit
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lm_eval.utils
import torch.distributed as dist
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import handle_stop_sequences, normalize_gen_kwargs, postprocess_generated_text
from tqdm import tqdm

from megads.errors import ConfigError, MegadsError
from megads.evaluate.lm_eval.jobs import Generation, Ranks, follow, scoring_jobs
from megads.inference.generate import leave
from megads.inference.sampling import Sampling
from megads.inference.session import Session, SessionRequest, open_session

BATCH = 16
"""Rows at a time where the user names no number."""
BATCHES = 8
"""Batches of every replica that are one job, after which the bar moves."""
OPEN: list[MegadsLM] = []
"""Models that were made by their arguments, on rank 0."""
SAMPLED = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
"""Settings of generation that are the same here as there."""

Asked = tuple[tuple[str, str] | None, list[int], list[int]]
"""Texts, and tokens of context and continuation."""


@register_model("megads")
class MegadsLM(TemplateLM):
    """A model of megads, in any layout. On another rank than 0 making one does not return: it follows rank 0.

    Args:
        checkpoint: a run, a folder of checkpoints, a checkpoint or a Hugging Face folder.
        tensor_parallel: ranks that share every layer.
        pipeline_parallel: stages.
        sequence_parallel: ranks that share every text (Ulysses); they score, and do not generate. Ranks beyond tensor x
            pipeline x sequence are replicas.
        dtype: fp32, bf16 or fp16; empty: the one of training.
        tokenizer: file or folder; empty: the model's own.
        step: the iteration to take; None: the newest.
        max_length: most tokens of a text; 0: the context of training.
        batch_size: texts at a time, on every replica; ``auto``: 16.
        max_gen_toks: most tokens to generate where a task does not say.
        session: a model that is open already, instead of all that is above.
    """

    def __init__(
        self,
        checkpoint: str = "",
        tensor_parallel: int = 1,
        pipeline_parallel: int = 1,
        sequence_parallel: int = 1,
        dtype: str = "",
        tokenizer: str = "",
        step: int | None = None,
        max_length: int = 0,
        batch_size: int | str = BATCH,
        max_gen_toks: int = 256,
        session: Session | None = None,
        **others: Any,
    ):
        super().__init__()
        _check_options(others, checkpoint, session)
        self.batch = BATCH if str(batch_size).startswith("auto") else int(batch_size)
        if session is None:
            place = Path(os.path.abspath(os.path.expanduser(checkpoint)))
            wanted = SessionRequest(
                place,
                step,
                tensor=int(tensor_parallel),
                pipeline=int(pipeline_parallel),
                sequence=int(sequence_parallel),
                dtype=dtype,
                tokenizer=tokenizer,
                num_slots=self.batch,
                context=int(max_length),
            )
            session = open_session(wanted, os.environ)
            if not session.speaks:
                follow(session)
                leave()
                raise SystemExit(0)
            OPEN.append(self)
            atexit.register(self._end)
        self.session, self.max_gen_toks = session, int(max_gen_toks)
        self.max_length = session.runner.context
        self.ranks = Ranks(session)
        self._template = session.template

    def close(self, error: MegadsError | None = None) -> None:
        """Let the other ranks end, with ``error`` if there is one."""
        self.ranks.close(error)
        atexit.unregister(self._end)

    def _end(self) -> None:
        """End with the interpreter, of a program that has not closed the model."""
        self.ranks.close()
        if dist.is_initialized():
            dist.barrier()  # the others still talk to this rank

    @property
    def eot_token_id(self) -> int:
        """The token that ends a text."""
        return self.session.tokenizer.eod

    @property
    def prefix_token_id(self) -> int:
        """What stands before a text whose first token is scored: the begin of text, or the end of another one."""
        bos = self.session.tokenizer.specials.bos
        return self.eot_token_id if bos is None else bos

    @property
    def tokenizer_name(self) -> str:
        """Name of the tokenizer, for caches of requests."""
        return self.session.tokenizer_path.replace(os.sep, "__")

    def get_model_info(self) -> dict[str, Any]:
        """Return what the results say about the model."""
        runner, groups = self.session.runner, self.session.groups
        layout = {"tensor_parallel": groups.tensor_size, "pipeline_parallel": groups.pipe_size}
        layout["sequence_parallel"] = groups.seq_size
        return {
            "model_summary": self.session.summary,
            "model_dtype": str(runner.dtype),
            "max_length": self.max_length,
            **layout,
            "replicas": groups.data_size,
        }

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        """Return tokens, as transformers' tokenizer of the model gives them to the backend ``hf``."""
        tokenizer = self.session.tokenizer
        if add_special_tokens is None:
            add_special_tokens = not string.startswith(tokenizer.decode([self.prefix_token_id]))
        return tokenizer.encode(string) if add_special_tokens else tokenizer.encode_plain(string)

    def tok_decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens without special ones."""
        tokenizer = self.session.tokenizer
        if (inner := getattr(tokenizer, "inner", None)) is not None:
            return str(inner.decode(tokens, skip_special_tokens=True))
        named = tokenizer.specials
        return tokenizer.decode([each for each in tokens if each not in (named.bos, named.eos, named.pad)])

    def _loglikelihood_tokens(self, requests: list[Asked], **kwargs: Any) -> list[tuple[float, bool]]:
        rows = []
        for _, context, continuation in requests:
            self._check(context, continuation)
            rows.append(([*context, *continuation][-self.max_length - 1 :], len(continuation)))
        found: dict[int, tuple[float, bool]] = {}
        with tqdm(total=len(requests), desc="scoring", disable=bool(kwargs.get("disable_tqdm"))) as bar:
            for job, places in scoring_jobs(rows, self.batch, self._at_once):
                for place, result in zip(places, self.ranks.run(job), strict=True):
                    found[place] = result
                    if (texts := requests[place][0]) is not None:
                        self.cache_hook.add_partial("loglikelihood", texts, result)
                bar.update(len(places))
        return [found[place] for place in range(len(requests))]

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Return the log-probability of every text, each token scored once."""
        windows: list[Asked] = []
        counts = []
        for (text,) in (each.args for each in requests):
            tokens = self.tok_encode(text)
            of_text = lm_eval.utils.get_rolling_token_windows(tokens, self.prefix_token_id, self.max_length, 1)
            pairs = [lm_eval.utils.make_disjoint_window(each) for each in of_text]
            windows += [(None, context, continuation) for context, continuation in pairs]
            counts.append(len(pairs))
        scores = iter(self._loglikelihood_tokens(windows, disable_tqdm=disable_tqdm))
        results = [sum(next(scores)[0] for _ in range(count)) for count in counts]
        for (text,), result in zip((each.args for each in requests), results, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", (text,), result)
        return results

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Return the text behind every context, up to the first of its stop strings.

        Raises:
            ConfigError: the settings of generation or the layout do not allow it.
        """
        if (size := self.session.groups.seq_size) > 1:
            raise ConfigError(f"SP={size}: tasks that generate text run without sequence parallelism; use SP=1")
        eos = self.session.tokenizer.decode([self.eot_token_id])
        plans = [self._plan(each.args[0], each.args[1], eos, place) for place, each in enumerate(requests)]
        texts: dict[int, str] = {}
        longest = sorted(range(len(plans)), key=lambda place: -len(plans[place].prompt))
        with tqdm(total=len(requests), desc="generating", disable=disable_tqdm) as bar:
            for first in range(0, len(longest), self._at_once):
                places = longest[first : first + self._at_once]
                job = Generation([plans[each].prompt for each in places], [plans[each].sampling for each in places])
                for place, tokens in zip(places, self.ranks.run(job), strict=True):
                    text = postprocess_generated_text(self.tok_decode(tokens), plans[place].until, None)
                    texts[place] = text
                    self.cache_hook.add_partial("generate_until", requests[place].args, text)
                bar.update(len(places))
        return [texts[place] for place in range(len(requests))]

    def _plan(self, context: str, asked: Mapping[str, Any], eos: str, place: int) -> _Plan:
        """Return what to generate; the seed of a text is its place, so that a run can be repeated."""
        settings = dict(normalize_gen_kwargs(dict(asked), self.max_gen_toks))
        until = handle_stop_sequences(settings.pop("until", None), eos=eos)
        count, is_sampled = int(settings.pop("max_gen_toks")), bool(settings.pop("do_sample"))
        room = self.max_length - count
        if room <= 0:
            raise ConfigError(
                f"max_gen_toks={count}: the context is {self.max_length}; use at most {self.max_length - 1}, e.g. with "
                "--gen-kwargs max_gen_toks=N"
            )
        if others := sorted(set(settings) - set(SAMPLED)):
            raise ConfigError(f"generation_kwargs: {', '.join(others)}: not supported; use {', '.join(SAMPLED)}")
        tokens = self.tok_encode(context)[-room:]
        self._check(tokens, [self.eot_token_id])
        chosen = {name: settings[name] for name in SAMPLED if settings.get(name) is not None} if is_sampled else {}
        sampling = Sampling(
            max_tokens=count,
            seed=place,
            stop=tuple(each for each in until if each),
            stop_token_ids=(self.eot_token_id,),
            **{"temperature": 0.0, **chosen},
        )
        return _Plan(tokens, sampling, until)

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """Return a chat as text; a system message is left out where the template refuses it."""
        self._check_template()
        try:
            text = self._template.render(chat_history, add_generation_prompt=add_generation_prompt)
        except ConfigError:
            if not (chat_history and chat_history[0].get("role") == "system"):
                raise
            return self.apply_chat_template(chat_history[1:], add_generation_prompt)
        if add_generation_prompt:
            return text
        last = chat_history[-1]["content"].rstrip()  # the answer that goes on: without what ends a message
        return text[: text.rindex(last) + len(last)]

    def chat_template(self, chat_template: bool | str = False) -> str:
        """Return the template of the model's tokenizer."""
        if not chat_template:
            return ""
        self._check_template()
        return self._template.text

    def _check_template(self) -> None:
        if not self._template.text:
            raise ConfigError(
                "--apply-chat-template: the model's tokenizer has no chat template; put chat_template.jinja next to it"
            )

    @property
    def _at_once(self) -> int:
        return self.batch * BATCHES * self.session.groups.data_size

    def _check(self, context: Sequence[int], continuation: Sequence[int]) -> None:
        """Refuse what the model cannot score.

        Raises:
            ConfigError: a token is missing or outside the vocabulary, or the continuation is too long.
        """
        size = self.session.runner.vocab_size
        if not (context and continuation):
            raise ConfigError("a request of the task has no token in its context or in its continuation")
        if len(continuation) > self.max_length:
            raise ConfigError(
                f"a continuation has {len(continuation)} tokens and the model a context of {self.max_length}"
            )
        if max(max(context), max(continuation)) >= size:
            raise ConfigError(f"the tokenizer gives tokens outside the model's vocabulary of {size}; pass its own one")


@dataclass(frozen=True)
class _Plan:
    prompt: list[int]
    sampling: Sampling
    until: list[str]


def _check_options(others: Mapping[str, Any], checkpoint: str, session: Session | None) -> None:
    """Refuse arguments that ``megads`` does not have; those that lm-eval passes to every model are ignored."""
    unknown = sorted(set(others) - {"device", "max_batch_size"})
    if unknown:
        raise ConfigError(f"model_args: {', '.join(unknown)}: no such argument; see docs/evaluation.md")
    if not checkpoint and session is None:
        raise ConfigError("model_args: checkpoint is missing; pass checkpoint=PATH, e.g. checkpoint=runs/7B")
