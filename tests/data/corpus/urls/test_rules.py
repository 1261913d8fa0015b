"""Which URLs are dropped, and why: the rules and the order of Megatron-LM's blacklist_urls.py."""

from __future__ import annotations

import pytest

from megads.data.corpus.urls.rules import domain_of, fault_of, host_of


@pytest.mark.parametrize(
    ("url", "fault"),
    [
        ("http://www.bbc.co.uk/news/1", ""),
        ("https://example.com", ""),
        ("HTTPS://Example.COM:8080/a?b=c#d", ""),
        ("http://8.8.8.8/a", ""),
        ("http://ex.co", ""),
        ("https://openai.ai", ""),
        ("https://i.imgur.com/x", "domain"),
        ("https://imgur.com/x.jpg", "domain"),
        ("http://user@old.reddit.com:80/r", "domain"),
        ("https://www.amazon.co.uk/dp", "domain"),
        ("https://youtu.be/x", "domain"),
        ("reddit.com", "domain"),
        ("http://github.io.example.org/x", ""),
        ("http://example.org/a.PDF", "extension"),
        ("http://example.org/a.pdf?download=1", "extension"),
        ("http://example.org/a?file=b.pdf", ""),
        ("http://example.org/a.7z", "extension"),
        ("http://example.org/logo.ai", "extension"),
        ("http://example.app", "extension"),
        ("x.gif", "extension"),
        ("http://a", "short"),
        ("abc", "short"),
        ("http://ab", "malformed"),
        ("ftp://example.org/a", "malformed"),
        ("http://example.org/a b", "malformed"),
        ("http://-a.org/x", "malformed"),
        ("http://a_b.org/x", "malformed"),
        ("http://localhost/x", "malformed"),
        ("http://example.org:x/", "malformed"),
        (f"http://{'a' * 64}.org/", "malformed"),
        (f"http://{'a' * 63}.org/", ""),
        ("example.org/page", "malformed"),
    ],
)
def test_fault(url, fault):
    assert fault_of(url) == fault


@pytest.mark.parametrize(
    ("url", "host", "domain"),
    [
        ("http://WWW.Example.co.uk./x", "www.example.co.uk", "example"),
        ("//a.b.c/x", "a.b.c", "b"),
        ("example.com?x", "example.com", "example"),
        ("http://u:p@h.org:8/x", "h.org", "h"),
        ("http://[::1]:8/x", "[::1]:8", "[::1]:8"),
        ("", "", ""),
        ("mailto", "mailto", "mailto"),
    ],
)
def test_parts(url, host, domain):
    assert (host_of(url), domain_of(host_of(url))) == (host, domain)
