"""Whether a resumed run has the data that it had: lists and files change under one name."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Sequence

from megads.data.samples.gpt import GPTRecipe
from megads.data.sources.file_list import Shard


def data_fingerprint(shards: Sequence[Shard], files: Iterable[GPTRecipe]) -> str:
    """Return what differs when a weight, a corpus, a file's name or a file's size does.

    The folders and the times of the files do not count: data may be copied to a faster disk.

    Args:
        shards: the training data; those of weight 0 are skipped.
        files: what is drawn from each file.
    """
    used = [shard for shard in shards if shard.weight > 0]
    total = sum(shard.weight for shard in used)
    sizes = {file.prefix: (file.stamp.index_bytes, file.stamp.token_bytes) for file in files}
    rows = [
        (f"{shard.weight / total:.12g}", os.path.basename(shard.prefix), shard.corpus, sizes.get(shard.prefix))
        for shard in used
    ]
    return hashlib.blake2b(json.dumps(rows).encode(), digest_size=8).hexdigest()
