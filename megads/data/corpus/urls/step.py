"""``megads corpus urls``: lists of URLs to one, without those that are not worth a download and without duplicates."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np
import numpy.typing as npt

from megads.data.corpus.frame.step import DROPPED, KEPT, Drop, Finished, Joined, Lines, Result, Step, drop_line
from megads.data.corpus.urls.rules import fault_of

_DIGESTS = 2  # stream: 16 bytes for each URL that is kept
_AT_ONCE = 100_000  # URLs between two looks at signals


class Urls(Step):
    """One URL a line; the first of equal ones stays. A digest of 16 bytes of each URL is held in memory."""

    name = "urls"
    num_streams = 3
    key = ""

    def options(self) -> dict[str, Any]:
        """Return everything that decides the output."""
        return {}

    def block(self, lines: Lines) -> Result:
        """Return the URLs of a block that no rule drops, and a digest of each."""
        result = Result([[] for _ in range(self.num_streams)])
        rows = lines.data.split(b"\n")
        if not rows[-1]:
            rows.pop()
        result.lines = len(rows)
        for number, row in enumerate(rows):
            try:
                url = row.decode().strip()
            except UnicodeDecodeError as error:
                result.bad.append((number, f"is not UTF-8 (byte {error.start} is 0x{row[error.start]:02x})"))
                continue
            if not url:
                continue
            result.documents += 1
            if fault := fault_of(url):
                result.drop(_row(url), Drop(fault))
                continue
            content = url.encode()
            result.count("kept")
            result.outputs[KEPT] += (content, b"\n")
            result.outputs[_DIGESTS].append(hashlib.blake2b(content, digest_size=16).digest())
        return result

    def finish(self, joined: Joined) -> Finished:
        """Drop the duplicates."""
        digests = np.fromfile(joined.streams[_DIGESTS], "<u8").reshape(-1, 2)
        is_first = first_ones(digests)
        later = int(len(is_first) - is_first.sum())
        if not later:
            return Finished(joined.streams[KEPT], joined.streams[DROPPED])
        output, dropped = joined.folder / "kept", joined.folder / "dropped"
        num_bytes = 0
        with joined.streams[KEPT].open("rb") as urls, output.open("wb") as kept, dropped.open("wb") as gone:
            with joined.streams[DROPPED].open("rb") as before:
                while piece := before.read(2**20):
                    gone.write(piece)
            for number, (url, is_kept) in enumerate(zip(urls, is_first.tolist(), strict=True)):
                if number % _AT_ONCE == 0:
                    joined.check()
                if is_kept:
                    kept.write(url)
                    continue
                num_bytes += len(url)
                if joined.wants_dropped:
                    gone.write(drop_line(_row(url[:-1].decode()), Drop("duplicate")) + b"\n")
        joined.counts.update(
            {"kept": len(is_first) - later, "dropped/duplicate": later, "dropped_bytes/duplicate": num_bytes}
        )
        return Finished(output, dropped)


def first_ones(digests: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
    """Return [n] whether each of ``digests`` [n, 2] is the first of its value."""
    order = np.lexsort((digests[:, 1], digests[:, 0]))  # stable: equal ones stay in their order
    ordered = digests[order]
    is_new = np.ones(len(digests), bool)
    is_new[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    result = np.empty(len(digests), bool)
    result[order] = is_new
    return result


def _row(url: str) -> bytes:
    """Return a URL as an object."""
    return json.dumps({"url": url}, ensure_ascii=False).encode()
