"""``megads corpus stats``: how many documents, how long, in which languages, from where."""

from __future__ import annotations

import json
import os
from collections import Counter
from typing import Any

from megads.data.corpus.cleaning.language import Language
from megads.data.corpus.frame.step import DROPPED, Document, Finished, Joined, Lines, Result, Step
from megads.data.corpus.urls.rules import host_of
from megads.data.tokenizers.base import Tokenizer, TokenizerSpec

_DOMAINS = 2  # stream: lines of number and host
_LENGTH, _LANGUAGE = "length/", "language/"
WITHOUT = "(no URL)"
"""Stands for the host of documents without one."""


class Stats(Step):
    """Counts; the output is a JSON object.

    Args:
        key: of the text.
        url_key: of the URL.
        tokenizer: what counts tokens; None: they are not counted.
        with_languages: whether languages are found.
        top: number of hosts that are named.
    """

    name = "stats"
    num_streams = 3
    takes_surrogates = True

    def __init__(
        self,
        key: str = "text",
        url_key: str = "url",
        tokenizer: TokenizerSpec | None = None,
        *,
        with_languages: bool = True,
        top: int = 20,
    ):
        self.key, self._url_key, self._spec, self._top = key, url_key, tokenizer, top
        self._language = Language() if with_languages else None
        self._tokenizer: Tokenizer | None = None
        self._fingerprint = ""
        if tokenizer is not None:
            from megads.data.tokenizers.build import identity

            self._fingerprint = identity(tokenizer)

    def options(self) -> dict[str, Any]:
        """Return everything that decides the output."""
        return {
            "key": self.key,
            "url_key": self._url_key,
            "tokenizer": self._fingerprint,
            "languages": self._language is not None,
            "top": self._top,
        }

    def begin(self) -> None:
        """Load the tokenizer."""
        if self._spec is not None:
            os.putenv("RAYON_NUM_THREADS", "1")
            os.putenv("TOKENIZERS_PARALLELISM", "false")
            from megads.data.tokenizers.build import make_tokenizer

            self._tokenizer = make_tokenizer(self._spec)

    def block(self, lines: Lines) -> Result:
        """Return counts, and the hosts of a block."""
        result = Result([[] for _ in range(self.num_streams)])
        hosts: Counter[str] = Counter()
        for document in self.documents(lines, result):
            self._count(document, result)
            hosts[self._host(document)] += 1
        rows = (f"{count} {host}\n".encode(errors="replace") for host, count in sorted(hosts.items()))
        result.outputs[_DOMAINS] += rows
        return result

    def finish(self, joined: Joined) -> Finished:
        """Add up the hosts, and write everything as one object."""
        hosts: Counter[str] = Counter()
        with joined.streams[_DOMAINS].open(encoding="utf-8", newline="\n") as rows:
            for number, row in enumerate(rows):
                count, _, host = row[:-1].partition(" ")
                hosts[host] += int(count)
                if number % 100_000 == 0:
                    joined.check()
        output = joined.folder / "stats.json"
        output.write_text(json.dumps(self._content(joined.counts, hosts), indent=2) + "\n")
        return Finished(output, joined.streams[DROPPED])

    def _count(self, document: Document, result: Result) -> None:
        text = document.text
        result.count("kept")
        result.count("characters", len(text))
        result.count("bytes", len(text.encode(errors="surrogatepass")))
        result.count("words", len(text.split()))
        result.count(f"{_LENGTH}{len(text).bit_length()}")
        if self._tokenizer is not None:
            result.count("tokens", len(self._tokenizer.encode(text)))
        if self._language is not None:
            result.count(f"{_LANGUAGE}{self._language(text)}")

    def _host(self, document: Document) -> str:
        url = document.content.get(self._url_key)
        host = host_of(url) if isinstance(url, str) else ""
        return "".join(host.removeprefix("www.").split()) or WITHOUT

    def _content(self, counts: dict[str, int], hosts: Counter[str]) -> dict[str, Any]:
        documents = counts.get("kept", 0)
        found: dict[str, Any] = {"documents": documents}
        for name in ("bytes", "characters", "words", "tokens"):
            if name != "tokens" or self._spec is not None:
                found[name] = counts.get(name, 0)
        bits = {int(name[len(_LENGTH) :]): count for name, count in counts.items() if name.startswith(_LENGTH)}
        found["lengths"] = [
            {"from": 2 ** (bit - 1) if bit else 0, "below": 2**bit, "documents": bits.get(bit, 0)}
            for bit in (range(min(bits), max(bits) + 1) if bits else ())
        ]
        if self._language is not None:
            names = {name[len(_LANGUAGE) :]: count for name, count in counts.items() if name.startswith(_LANGUAGE)}
            found["languages"] = dict(sorted(names.items(), key=lambda each: (-each[1], each[0])))
        ordered = sorted(hosts.items(), key=lambda each: (-each[1], each[0]))
        found["num_domains"] = len(hosts) - (WITHOUT in hosts)
        found["domains"] = dict(ordered[: self._top])
        return found


def table(found: dict[str, Any], bad_lines: int) -> list[str]:
    """Return what was counted as lines for a reader."""
    documents = max(found["documents"], 1)
    lines = [f"{'documents':12}{found['documents']:>16,}"]
    for name in ("bytes", "characters", "words", "tokens"):
        if name in found:
            lines.append(f"{name:12}{found[name]:>16,}{found[name] / documents:>14,.1f} per document")
    if bad_lines:
        lines.append(f"{'bad lines':12}{bad_lines:>16,}")
    rows = [(f"{each['from']:,} to {each['below'] - 1:,}", each["documents"]) for each in found["lengths"]]
    for title, found_rows in (
        ("characters", rows),
        ("language", list(found.get("languages", {}).items())),
        (f"domain ({found['num_domains']:,} in total)", list(found["domains"].items())),
    ):
        if found_rows:
            lines += ["", f"{title:34}{'documents':>12}"]
            lines += [f"  {name:32}{count:>12,}{count / documents:>8.1%}" for name, count in found_rows]
    return lines
