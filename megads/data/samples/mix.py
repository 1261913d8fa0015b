"""Mix token files into one row of samples: concatenated or blended within a corpus, blended between corpora."""

from __future__ import annotations

import bisect
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from megads.data.formats.files import Row
from megads.data.formats.token_file import TokenFile
from megads.data.samples.blend import BlendRecipe, normalised, number_dtype
from megads.data.samples.bounds import bounds_of
from megads.data.samples.gpt import LAST_EPOCH_CUTOFF, GPTRecipe, GPTSamples, Stamp
from megads.data.samples.growing import EpochwiseRecipe, most_taken
from megads.data.samples.masked.masking import WordPieces
from megads.data.samples.masked.options import MaskedOptions, MaskedRows
from megads.data.samples.masked.sentence_map import SentenceRecipe
from megads.data.samples.recipe import ArrayStream, Columns, Recipe, Spec
from megads.errors import DataError

SURPLUS = 1.005
"""Megatron asks each file for half a percent more than its share, so that rounding never runs dry."""


FileRecipe = GPTRecipe | SentenceRecipe
"""The samples of one file."""


def requested_samples(weights: Sequence[float], size: int) -> list[int]:
    """Return how many samples each file of a list is asked for so that ``size`` can be drawn by ``weights``.

    This is the rule of ALCF's Megatron-DeepSpeed, which rounds once; for a path see :func:`_path_requests`.
    """
    return [math.ceil(size * weight * SURPLUS) for weight in normalised(weights)]


@dataclass(frozen=True)
class Source:
    """What one file gives to a mix."""

    weight: float  # positive
    prefix: str
    corpus: str
    stamp: Stamp
    documents: range  # not empty
    tokens: int  # in the documents; about, but for files of a path without weights
    samples: int | None = None  # of BERT or T5 in one epoch; only for files of a path without weights


@dataclass(frozen=True)
class MixOptions:
    """How files become one row of samples; see :func:`plan_mix`."""

    seq_length: int
    seed: int
    cutoff: float = LAST_EPOCH_CUTOFF
    blend_in_corpus: bool = False
    shuffle_in_corpus: bool = True
    plain: bool = False  # as Megatron's --data-path: every file is a corpus of its own
    weighted: bool = True  # with ``plain``: files have weights; else each weighs the samples it holds
    vocab_size: int = 0  # a sample with an id outside of 0..vocab_size-1 is refused; 0: not looked at
    masked: MaskedOptions | None = None  # of BERT and T5
    growing: bool = False  # an order that is the same for every longer plan, see the module growing

    @property
    def width(self) -> int:
        """Numbers of a sample."""
        return self.masked.parts.width if self.masked else self.seq_length + 1


@dataclass(frozen=True)
class OrderRecipe(Recipe):
    """A shuffled row of numbers. Array: ``order`` [size], uint32 or int64."""

    size: int
    seed: int
    kind = "order"

    @property
    def cost(self) -> int:
        """Rough work, in samples."""
        return self.size

    @property
    def nbytes(self) -> int:
        """Bytes of the array."""
        return self._spec().nbytes

    def make(self) -> ArrayStream:
        """Begin to make the array."""
        return ArrayStream((self._spec(),), self._blocks())

    def _spec(self) -> Spec:
        return Spec("order", number_dtype(self.size), (self.size,))

    def _blocks(self) -> Iterator[npt.NDArray[Any]]:
        order = np.arange(self.size, dtype=self._spec().dtype)
        np.random.RandomState(self.seed).shuffle(order)
        yield order


@dataclass(frozen=True)
class CorpusPlan:
    """The samples of one corpus: the first ``counts[f]`` of each file ``f``."""

    name: str
    files: tuple[FileRecipe, ...]
    counts: tuple[int, ...]
    blend: BlendRecipe | None  # of the files; None: laid end to end
    order: OrderRecipe | None  # shuffled once; None: as they come

    def recipes(self) -> Iterator[Recipe]:
        """Yield what has to be built."""
        yield from self.files
        yield from (each for each in (self.blend, self.order) if each is not None)


@dataclass(frozen=True)
class MixPlan:
    """Everything that decides the samples of a split; small, the same on every rank, and made without reading data."""

    corpora: tuple[CorpusPlan, ...]
    blend: BlendRecipe | None  # of the corpora; None: there is one
    size: int
    names: tuple[str, ...]  # of the corpora, in the order of the data list
    options: MixOptions

    def files(self) -> Iterator[FileRecipe]:
        """Yield what is drawn from each file."""
        for corpus in self.corpora:
            yield from corpus.files

    def recipes(self) -> Iterator[Recipe]:
        """Yield what has to be built."""
        for corpus in self.corpora:
            yield from corpus.recipes()
        if self.blend is not None:
            yield self.blend


def plan_mix(sources: Sequence[Source], size: int, options: MixOptions) -> MixPlan:
    """Return how ``size`` samples are drawn from files by weight.

    As ALCF's Megatron-DeepSpeed does it: each file gives its share of the samples, and half a
    percent more, in its own order. The files of a corpus are laid end to end, or blended by
    these numbers, and the corpus is shuffled once. The corpora, in the order of their names, are
    blended by the numbers of their samples.

    With ``options.plain``, as Megatron-core does it: see :func:`_plan_path`. With ``options.growing``:
    :func:`_plan_growing`.
    """
    if options.growing:
        return _plan_growing(sources, size, options)
    if options.plain:
        return _plan_path(sources, size, options)
    counts = requested_samples([source.weight for source in sources], size)
    files = [_file_recipe(source, count, options) for source, count in zip(sources, counts, strict=True)]
    members: dict[str, list[int]] = {}
    for number, source in enumerate(sources):
        members.setdefault(source.corpus, []).append(number)
    corpora = [
        _plan_corpus(name, [files[i] for i in mine], [counts[i] for i in mine], options)
        for name, mine in sorted(members.items())
    ]
    blend = None
    if len(corpora) > 1:
        blend = BlendRecipe(_shares(_shares([sum(each.counts) for each in corpora])), size)
    return MixPlan(tuple(corpora), blend, size, tuple(dict.fromkeys(source.corpus for source in sources)), options)


def _plan_path(sources: Sequence[Source], size: int, options: MixOptions) -> MixPlan:
    """Return how ``size`` samples are drawn from the files of a path, as Megatron-core's builder does it.

    Files are blended in the order in which they are given; nothing is shuffled beyond the order of each file.

    * One file without a weight gives ``size`` samples.
    * Files with weights, also a single one, are asked for their share, rounded up, and half a
      percent more, rounded up again.
    * Files without weights give one epoch each, blended by the samples in it. Where Megatron-core
      would end, because ``size`` is more than that, these numbers are taken as weights.
    """
    counts, weights = _path_requests(sources, size, options)
    files = [_file_recipe(source, count, options) for source, count in zip(sources, counts, strict=True)]
    corpora = tuple(
        CorpusPlan(source.corpus, (file,), (size,), None, None) for source, file in zip(sources, files, strict=True)
    )
    blend = BlendRecipe(_shares(weights), size) if len(sources) > 1 else None
    return MixPlan(corpora, blend, size, tuple(dict.fromkeys(source.corpus for source in sources)), options)


def _plan_growing(sources: Sequence[Source], size: int, options: MixOptions) -> MixPlan:
    """Return how ``size`` samples are drawn from files so that more would begin with the same ones.

    No number but those of the samples depends on ``size``. A corpus blends its files; files of a path are corpora.
    """
    weights = [source.weight for source in sources]
    if options.plain and not options.weighted:
        weights = [float(max(1, _samples_in(source, options))) for source in sources]
    members: dict[Any, list[int]] = {}
    for number, source in enumerate(sources):
        members.setdefault(number if options.plain else source.corpus, []).append(number)
    groups = [mine for _, mine in sorted(members.items())]
    shares = _shares([sum(weights[i] for i in mine) for mine in groups])
    corpora = []
    for share, mine in zip(shares, groups, strict=True):
        count, parts = most_taken(share, size), _shares([weights[i] for i in mine])
        counts = [most_taken(part, count) for part in parts]
        files = tuple(_file_recipe(sources[i], n, options) for i, n in zip(mine, counts, strict=True))
        blend = BlendRecipe(parts, count) if len(mine) > 1 else None
        corpora.append(CorpusPlan(sources[mine[0]].corpus, files, tuple(counts), blend, None))
    blend = BlendRecipe(shares, size) if len(corpora) > 1 else None
    return MixPlan(tuple(corpora), blend, size, tuple(dict.fromkeys(source.corpus for source in sources)), options)


def _path_requests(
    sources: Sequence[Source], size: int, options: MixOptions
) -> tuple[Sequence[int | None], Sequence[float]]:
    """Return how many samples each file of a path is asked for, None for one epoch, and its weight in the blend."""
    weights: Sequence[float] = [source.weight for source in sources]
    if not options.weighted:
        if len(sources) == 1:
            return [size], weights
        weights = [_samples_in(source, options) for source in sources]
        if size <= sum(weights):
            return [None] * len(sources), weights
    shares = _shares(weights)
    return [math.ceil(math.ceil(size * share) * SURPLUS) for share in shares], shares


def _samples_in(source: Source, options: MixOptions) -> int:
    """Return how many samples one epoch of a file has."""
    return max(0, source.tokens - 1) // options.seq_length if source.samples is None else source.samples


def _file_recipe(source: Source, count: int | None, options: MixOptions) -> FileRecipe:
    """Return the samples of a file; ``count`` None: one epoch."""
    if options.masked:
        documents = source.documents
        return options.masked.recipe(source.prefix, source.stamp, documents, source.tokens, count, options.seed)
    epochs = 1 if count is None else max(1, -(-(count * options.seq_length + 1) // max(1, source.tokens)))
    nbytes = 4 * epochs * len(source.documents) + 12 * max(count or 0, epochs * source.tokens // options.seq_length)
    first, last = source.documents.start, source.documents.stop
    kind = EpochwiseRecipe if options.growing else GPTRecipe
    return kind(
        source.prefix, source.stamp, first, last, options.seq_length, count, options.seed, options.cutoff, nbytes
    )


def _plan_corpus(name: str, files: Sequence[FileRecipe], counts: Sequence[int], options: MixOptions) -> CorpusPlan:
    total = sum(counts)
    shares = tuple((np.array(counts) / total).tolist())
    blend = BlendRecipe(shares, total) if options.blend_in_corpus and len(files) > 1 else None
    order = OrderRecipe(total, options.seed) if options.shuffle_in_corpus else None
    return CorpusPlan(name, tuple(files), tuple(counts), blend, order)


def _shares(weights: Sequence[float]) -> tuple[float, ...]:
    """Return ``weights`` with sum 1, added up and divided as numpy does it: upstream's last bits decide ties."""
    values = np.array(weights, np.float64)
    return tuple((values / np.sum(values)).tolist())


class Mix:
    """The samples of a :class:`MixPlan`. Files and arrays are opened when a sample needs them.

    ``pieces`` are those of the tokenizer, for the samples of BERT and T5.
    """

    def __init__(
        self,
        plan: MixPlan,
        find: Callable[[Recipe], Columns],
        open_file: Callable[[str], TokenFile],
        pieces: WordPieces | None = None,
    ):
        self.plan = plan
        self.corpora = list(plan.names)
        make = functools.partial(_samples_of, find=find, open_file=open_file, options=plan.options, pieces=pieces)
        self._parts = [_Corpus(corpus, find, make) for corpus in plan.corpora]
        masked, size = plan.options.masked, plan.options.vocab_size
        self._bounds = bounds_of(size, masked.parts if masked else None) if size else ()
        self._blend = find(plan.blend) if plan.blend is not None else None

    @property
    def width(self) -> int:
        """Numbers of a sample."""
        return self.plan.options.width

    def __len__(self) -> int:
        return self.plan.size

    def __getitem__(self, i: int) -> npt.NDArray[np.int64]:
        """Return sample ``i``, int64 [width].

        Raises:
            DataError: the sample holds an id that the model does not know or does not fit it, or a file or index is
                broken.
        """
        file, number = self.drawn_from(i)
        row = file[number]
        for bound in self._bounds:
            if problem := bound.problem(row):
                raise DataError(
                    f"{file.dataset.prefix}: its sample {number} holds {problem}; "
                    "use the tokenizer the file was made with, and its VOCAB_SIZE"
                )
        return row

    def drawn_from(self, i: int) -> tuple[FileSamples, int]:
        """Return the samples of the file that sample ``i`` is one of, and its number there."""
        corpus, number = self._find(i)
        return self._parts[corpus].find(number)

    def corpus_of(self, i: int) -> str:
        """Return the name of the corpus that sample ``i`` is of."""
        return self.plan.corpora[self._find(i)[0]].name

    def _find(self, i: int) -> tuple[int, int]:
        """Return the corpus of sample ``i``, and its number there."""
        if not 0 <= i < self.plan.size:
            raise IndexError(f"sample {i} of {self.plan.size}")
        if self._blend is None:
            return 0, i
        return self._blend["dataset"][i], self._blend["sample"][i]


FileSamples = GPTSamples | MaskedRows


def _samples_of(
    recipe: FileRecipe,
    *,
    find: Callable[[Recipe], Columns],
    open_file: Callable[[str], TokenFile],
    options: MixOptions,
    pieces: WordPieces | None,
) -> FileSamples:
    """Return the samples of a file."""
    dataset, columns = open_file(recipe.prefix), find(recipe)
    if isinstance(recipe, GPTRecipe):
        return GPTSamples(dataset, columns, recipe.seq_length)
    if options.masked is None or pieces is None:
        raise ValueError(f"samples of sentences of {recipe.prefix} need a vocabulary")
    return options.masked.rows(dataset, columns, pieces, recipe.seed)


class _Corpus:
    """Finds the samples of a corpus in its files."""

    def __init__(self, plan: CorpusPlan, find: Callable[[Recipe], Columns], make: Callable[[FileRecipe], FileSamples]):
        self._plan = plan
        self._find, self._make = find, make
        self._starts = [0, *itertools.accumulate(plan.counts)]
        self._files: list[FileSamples | None] = [None] * len(plan.files)
        self._order: Row | None = None
        self._blend: Columns | None = None

    def find(self, i: int) -> tuple[FileSamples, int]:
        """Return the file that holds sample ``i`` of the corpus, and its number there."""
        if self._plan.order is not None:
            if self._order is None:
                self._order = self._find(self._plan.order)["order"]
            i = self._order[i]
        if self._plan.blend is None:
            file = bisect.bisect_right(self._starts, i) - 1
            return self._file(file), i - self._starts[file]
        if self._blend is None:
            self._blend = self._find(self._plan.blend)
        return self._file(self._blend["dataset"][i]), self._blend["sample"][i]

    def _file(self, number: int) -> FileSamples:
        found = self._files[number]
        if found is None:
            # Two threads may both open it; the later one's is kept.
            found = self._files[number] = self._make(self._plan.files[number])
        return found
