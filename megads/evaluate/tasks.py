"""What can be evaluated: each task turns a file into windows, and their scores into numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megads.data.formats.prefix import strip_suffix
from megads.data.formats.token_file import open_dataset
from megads.data.tokenizers.base import Tokenizer
from megads.data.tokenizers.types.null import NullTokenizer
from megads.errors import ConfigError, DataError
from megads.evaluate.detokenize import detokenizer_of
from megads.evaluate.windows import Span, Windows, rolling, samples, sliding
from megads.storage.reading import parse_json

JSON_LINES = (".json", ".jsonl")
"""A file of another suffix is one text."""

Scores = Sequence[tuple[float, bool]]


@dataclass(frozen=True)
class Task:
    """Windows to score, and what their scores say.

    Attributes:
        windows: of all texts.
        result: turns the scores into named numbers.
        line: the format of one line about them.
    """

    windows: Windows
    result: Callable[[Scores], dict[str, float]]
    line: str


@dataclass(frozen=True)
class Options:
    """Settings of tasks.

    Attributes:
        context: most tokens that a target sees, itself left out.
        stride: wikitext103: targets of every window but the first.
        is_strict: lambada: all tokens of the last word must be right, not the last token only.
        vocab_size: ids that the model knows; 0: not compared.
        documents: token files: which documents to score, of how many; None: all.
    """

    context: int
    stride: int = 32
    is_strict: bool = False
    vocab_size: int = 0
    documents: Callable[[int], range] | None = None


def wikitext103(path: Path, tokenizer: Tokenizer, options: Options) -> Task:
    """Perplexity per word of a text that was split into words, with overlapping windows (Megatron-LM).

    ``loss`` is the mean over the tokens but the first, ``adjusted_ppl`` the exponential of the loss per word of the
    original text, ``token_ratio`` tokens per word.
    """
    text = _text(path)
    words = len(text.strip().split(" "))
    tokens = tokenizer.encode(detokenizer_of(path)(text))
    if len(tokens) < 2 or words < 2:
        raise DataError(f"{path}: is too short to evaluate; it has {len(tokens)} tokens in {words} words")
    if not 1 <= options.stride <= options.context:
        raise ConfigError(f"--overlapping-eval {options.stride}: use 1 to {options.context}, the context")
    ratio = (len(tokens) - 1) / (words - 1)

    def result(scores: Scores) -> dict[str, float]:
        loss = -math.fsum(total for total, _ in scores) / (len(tokens) - 1)
        ppl, adjusted = math.exp(min(20, loss)), math.exp(min(20, loss * ratio))
        return {"loss": loss, "ppl": ppl, "adjusted_ppl": adjusted, "token_ratio": ratio}

    line = "loss {loss:.4f}, perplexity {ppl:.4f}, per word {adjusted_ppl:.4f} ({token_ratio:.4f} tokens per word)"
    spans = sliding(len(tokens), options.context, options.stride)
    return Task(Windows.of([(tokens, spans)]), result, line)


def lambada(path: Path, tokenizer: Tokenizer, options: Options) -> Task:
    """Accuracy of the last token of every text, or with ``is_strict`` of its last word (JSON lines with ``text``)."""
    windows: list[tuple[Sequence[int], Sequence[Span]]] = []
    for number, text in enumerate(_texts(path), start=1):
        if options.is_strict:
            word = text.split()[-1]
            before = tokenizer.encode(text[: text.rfind(word)].strip())
            target = tokenizer.encode(f" {word}")
        else:
            tokens = tokenizer.encode(text)
            before, target = tokens[:-1], tokens[-1:]
        if not (before and target):
            raise DataError(f"{path}:{number}: has nothing before its last word")
        if len(target) > options.context:
            raise DataError(f"{path}:{number}: its last word has {len(target)} tokens, the context {options.context}")
        tokens = [*before, *target][-options.context - 1 :]
        windows.append((tokens, [(0, len(tokens), len(target))]))

    def result(scores: Scores) -> dict[str, float]:
        correct = sum(is_greedy for _, is_greedy in scores)
        mean = -math.fsum(total for total, _ in scores) / len(scores)
        ppl = math.exp(min(700, mean))
        return {"correct": correct, "total": len(scores), "accuracy": correct / len(scores), "ppl": ppl}

    return Task(
        Windows.of(windows),
        result,
        "{correct:.0f} of {total:.0f} correct, accuracy {accuracy:.4f}, perplexity {ppl:.4f}",
    )


def loss(path: Path, tokenizer: Tokenizer, options: Options) -> Task:
    """Loss, perplexity and bits per byte of texts: JSON lines with ``text``, a file that is one text, or token files.

    Every token is scored once, the first of a text behind the end-of-text token. Token files: see :func:`_of_tokens`.
    """
    if is_token_file(path):
        return _of_tokens(path, tokenizer, options)
    texts = list(_texts(path)) if path.suffix in JSON_LINES else [_text(path)]
    encoded = [tokenizer.encode(text) for text in texts]
    count, size = sum(map(len, encoded)), sum(len(text.encode()) for text in texts)
    if not count:
        raise DataError(f"{path}: has no text")
    windows = Windows.of(([tokenizer.eod, *tokens], rolling(len(tokens) + 1, options.context)) for tokens in encoded)

    def result(scores: Scores) -> dict[str, float]:
        nats = -math.fsum(total for total, _ in scores)
        mean = nats / count
        bits = nats / math.log(2) / size
        return {"loss": mean, "ppl": math.exp(min(700, mean)), "bits_per_byte": bits, "tokens": count, "bytes": size}

    line = "loss {loss:.4f}, perplexity {ppl:.4f}, {bits_per_byte:.4f} bits per byte, {tokens:.0f} tokens"
    return Task(windows, result, line)


def _of_tokens(path: Path, tokenizer: Tokenizer, options: Options) -> Task:
    """Loss of token files as training reads them: documents end to end, cut into samples of ``context`` targets.

    A sample begins with the last token of the one before, and sees nothing else of it; the last one may be shorter.
    Bits per byte only where decoding and encoding the first document gives the same ids again.
    """
    dataset = open_dataset(str(path))
    bounds = dataset.document_row
    chosen = options.documents(dataset.num_documents) if options.documents else range(dataset.num_documents)
    texts = [dataset.get(i) for document in chosen for i in range(bounds[document], bounds[document + 1])]
    tokens = np.concatenate(texts).astype(np.int32) if texts else np.zeros(0, np.int32)
    if len(tokens) < 2:
        raise DataError(f"{strip_suffix(str(path))}: has {len(tokens)} tokens in {len(chosen)} documents; 2 are needed")
    spans = samples(len(tokens), options.context)
    count, size = len(tokens) - 1, _bytes(texts, tokenizer)

    def result(scores: Scores) -> dict[str, float]:
        nats = -math.fsum(total for total, _ in scores)
        mean = nats / count
        bits = {"bits_per_byte": nats / math.log(2) / size, "bytes": size} if size else {}
        return {"loss": mean, "ppl": math.exp(min(700, mean)), **bits, "tokens": count, "samples": len(spans)}

    bits = ", {bits_per_byte:.4f} bits per byte" if size else ""
    line = f"loss {{loss:.4f}}, perplexity {{ppl:.4f}}{bits}, {{tokens:.0f}} tokens in {{samples:.0f}} samples of "
    return Task(Windows.of([(tokens, spans)]), result, f"{line}{options.context}")


def _bytes(texts: Sequence[NDArray[Any]], tokenizer: Tokenizer) -> int:
    """Return the bytes of the texts; 0 where the tokenizer cannot give them back."""
    if isinstance(tokenizer, NullTokenizer):
        return 0
    total = 0
    for text in texts:
        ids = [token for token in text.tolist() if token != tokenizer.eod]
        decoded = tokenizer.decode(ids)
        if not total and tokenizer.encode(decoded) != ids:
            return 0
        total += len(decoded.encode())
    return total


def is_token_file(path: Path) -> bool:
    """Return whether ``path`` names token files, by their prefix or by one of them."""
    return Path(f"{strip_suffix(str(path))}.idx").is_file()


TASKS = {"wikitext103": wikitext103, "lambada": lambada, "loss": loss}


def make_task(name: str, path: Path, tokenizer: Tokenizer, options: Options) -> Task:
    """Return the task ``name`` on the file ``path``.

    Raises:
        ConfigError: there is none of this name, or an option does not fit.
        DataError: the file cannot be used.
    """
    task = _known(name)(path, tokenizer, options)
    largest = int(task.windows.tokens.max())
    if options.vocab_size and largest >= options.vocab_size:
        raise DataError(
            f"{path}: has token {largest}, but the model knows {options.vocab_size}; use the tokenizer that the model "
            "was trained with"
        )
    return task


def _known(name: str) -> Callable[[Path, Tokenizer, Options], Task]:
    if name.lower() not in TASKS:
        raise ConfigError(f"--task {name}: no such task; the tasks are {', '.join(TASKS)}")
    return TASKS[name.lower()]


def check_file(task: str, path: Path) -> None:
    """Check that a file holds what ``task`` reads, as far as that shows without its tokens.

    Raises:
        ConfigError: there is no such task.
        DataError: it does not.
    """
    _known(task)
    if task == "loss" and is_token_file(path):
        open_dataset(str(path))
    elif task == "lambada" or (task == "loss" and path.suffix in JSON_LINES):
        _texts(path)
    elif len(_text(path).split()) < 2:
        raise DataError(f"{path}: is too short to evaluate")


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise DataError(f"{path}: is not UTF-8 text (byte {error.start} is 0x{byte:02x}); convert it") from None
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from None


def _is_unicode(text: str) -> bool:
    """Return whether a text consists of characters: JSON can also hold halves of some."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _texts(path: Path) -> list[str]:
    texts = []
    for number, line in enumerate(_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            found = parse_json(line)
        except ValueError as error:
            raise DataError(f"{path}:{number}: {error}") from None
        text = found.get("text") if isinstance(found, dict) else None
        if not isinstance(text, str) or not text.strip():
            raise DataError(f'{path}:{number}: expected an object with "text"')
        if not _is_unicode(text):
            raise DataError(f"{path}:{number}: its text has half of a surrogate pair, which is no character")
        texts.append(text)
    if not texts:
        raise DataError(f"{path}: has no text")
    return texts
