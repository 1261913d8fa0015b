"""Bugs of Retro, chats, adapters, corpus tools and Detoxify that `tests/mutations.py` plants, and the tests of each."""

from __future__ import annotations

from tests.planted_bugs import Mutation


def of(file: str, words: str) -> tuple[str, ...]:
    """Return the arguments that run the tests of ``file`` whose names hold ``words``."""
    return (f"tests/{file}.py", "-k", words)


SYSTEM_MUTATIONS = (
    Mutation(
        "a token looks at its chunk's neighbours one token too early",
        "megads/models/chunk_attention.py",
        "        first = self.chunk - 1 if self.seq_rank is None else -1",
        "        first = self.chunk - 2 if self.seq_rank is None else -1",
        of("models/test_retro", "never_sees_the_neighbours"),
    ),
    Mutation(
        "the last chunk's encoding does not pass on to the next sequence rank",
        "megads/models/chunk_attention.py",
        "self.chunk - 1 if not self.seq_rank else 0, last)",
        "self.chunk - 1, last)",
        of("models/test_retro", "cut_model_is_the_whole_one"),
    ),
    Mutation(
        "a neighbour is continued by itself",
        "megads/data/retro/database.py",
        "self.chunk((number + further) % len(self))",
        "self.chunk(number % len(self))",
        of("data/retro/test_database", "those_behind_it"),
    ),
    Mutation(
        "neighbours of the sample's own documents are kept",
        "megads/retro/query.py",
        "found[~np.isin(self._documents[found], banned)][:kept]",
        "found[:kept]",
        of("retro/test_query", "no_neighbour_is_of_a_document"),
    ),
    Mutation(
        "prompts are learnt, too",
        "megads/data/chat/encoding.py",
        "        counts = [begin < end and (of_answer(begin) or of_answer(end - 1)) for begin, end in found.offsets]",
        "        counts = [begin < end for begin, end in found.offsets]",
        of("data/chat/test_encoding", "template_of_a_folder"),
    ),
    Mutation(
        "packed chats are one document",
        "megads/data/chat/rows.py",
        "            row[self.numbers][at:end] = number",
        "            row[self.numbers][at:end] = 0",
        of("data/chat/test_rows", "side_by_side"),
    ),
    Mutation(
        "adapters are added without their factor",
        "megads/models/lora.py",
        "        low = low * options.scale\n",
        "",
        of("models/test_lora", "a_column_with"),
    ),
    Mutation(
        "all bands of signatures are the first one",
        "megads/data/corpus/duplicates/candidates.py",
        "        keys = _keys(signatures, range(band * columns, (band + 1) * columns))",
        "        keys = _keys(signatures, range(columns))",
        of("data/corpus/duplicates/test_candidates", "those_of_the_library"),
    ),
    Mutation(
        "scores at the threshold are not toxic",
        "megads/detoxify/metrics.py",
        "        return score > threshold if above else score >= threshold",
        "        return score > threshold",
        of("detoxify/test_metrics", "reference"),
    ),
    Mutation(
        "texts without a score do not count in what is kept",
        "megads/detoxify/filter.py",
        "    return scored[: math.floor(len(scores) * Fraction(repr(keep)))]",
        "    return scored[: math.floor(len(scored) * Fraction(repr(keep)))]",
        of("detoxify/test_filter", "half_of_all_lines"),
    ),
)
