from __future__ import annotations

import shutil
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megads.cluster.hosts import count_slots, is_this_host, lsf_hosts, parse_hosts, read_host_file, this_host
from megads.errors import LaunchError


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("login", "login"),
        ("a[1-2],b[3-4]", "a1 a2 b3 b4"),
        ("rack[0-1]n[0-3]", "rack0n0 rack0n1 rack0n2 rack0n3 rack1n0 rack1n1 rack1n2 rack1n3"),
        ("gpu[01-02]-ib", "gpu01-ib gpu02-ib"),
        ("n[1,3-5]", "n1 n3 n4 n5"),
        ("n[08-11],x", "n08 n09 n10 n11 x"),
        ("n[99-101]", "n99 n100 n101"),
        ("n[001,2]", "n001 n2"),
        ("n[1-2][3-4]", "n13 n14 n23 n24"),
        ("[1-2]", "1 2"),
        ("a,a,b[1,1]", "a b1"),
        (" a , b,", "a b"),
        ("n1.site.org,n[2-3].site.org", "n1.site.org n2.site.org n3.site.org"),
    ],
)
def test_every_form_of_a_host_list(text, hosts):
    assert parse_hosts(text) == tuple(hosts.split())


WRONG = ("", ",", f"n[1-{'9' * 5000}]", "n[1-2", "n1]", "n]1[", "n[[1]]", "n[]", "n[1-]", "n[-1]", "n[3-1]", "n[a-b]")


@pytest.mark.parametrize("text", WRONG)
def test_a_wrong_host_list_is_one_line_that_shows_it(text):
    with pytest.raises(LaunchError) as raised:
        parse_hosts(text, "SLURM_STEP_NODELIST")
    assert f"SLURM_STEP_NODELIST={text!r}" in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("text", ["n[1:2]", "n[1 - 3]", "a b", "n[0-99999999]", "n[0-999][0-999][0-9]", "n[1,,2]"])
def test_what_no_scheduler_writes_is_refused(text):
    with pytest.raises(LaunchError, match="it should be like n"):
        parse_hosts(text)


# A range as SLURM writes it: as many digits on both sides, or none that are zeros to fill.
NUMBERS = st.tuples(st.integers(0, 300), st.integers(0, 12), st.integers(1, 4)).map(
    lambda drawn: (drawn[0], drawn[0] + drawn[1], drawn[2])
)
RANGES = st.lists(NUMBERS, min_size=1, max_size=3)
WORDS = st.text("abn-x", min_size=1, max_size=3).filter(lambda word: not word.startswith("-"))


def write_bracket(ranges: list[tuple[int, int, int]]) -> str:
    parts = [f"{low:0{width}}" if low == high else f"{low:0{width}}-{high:0{width}}" for low, high, width in ranges]
    return f"[{','.join(parts)}]"


def expand_bracket(ranges: list[tuple[int, int, int]]) -> list[str]:
    return [f"{number:0{width}}" for low, high, width in ranges for number in range(low, high + 1)]


@given(st.lists(st.tuples(WORDS, RANGES, WORDS | st.just(""), RANGES | st.none(), WORDS | st.just("")), min_size=1))
@settings(max_examples=100, deadline=None, database=None, derandomize=True)
def test_parsing_undoes_writing(names):
    text, hosts = [], []
    for head, first, middle, second, tail in names:
        text.append(head + write_bracket(first) + middle + (write_bracket(second) if second else "") + tail)
        hosts += [
            head + number + middle + more + tail
            for number in expand_bracket(first)
            for more in (expand_bracket(second) if second else [""])
        ]
    assert parse_hosts(",".join(text)) == tuple(dict.fromkeys(hosts))


def test_real_slurm_reads_lists_the_same_way(slurm):
    """scontrol of 22.05 takes no text after a bracket; in all else it is the judge."""
    assert shutil.which("scontrol")

    @given(st.lists(st.tuples(WORDS, RANGES, RANGES | st.none()), min_size=1, max_size=3))
    @settings(max_examples=25, deadline=None, database=None, derandomize=True)
    def check(names):
        text = ",".join(
            head + write_bracket(first) + ("r" + write_bracket(second) if second else "")
            for head, first, second in names
        )
        shown = subprocess.run(["scontrol", "show", "hostnames", text], env=slurm.env, capture_output=True, text=True)
        assert shown.returncode == 0, shown.stderr
        assert parse_hosts(text) == tuple(dict.fromkeys(shown.stdout.split()))

    check()


@pytest.mark.parametrize(
    ("text", "slots"),
    [
        ("n1\nn2\nn1\n", {"n1": 2, "n2": 1}),
        ("n1 slots=4 # fast\n\n# none\nn2 slots=2 max_slots=8\n", {"n1": 4, "n2": 2}),
        ("n1:4\nn2:2\nn1:1\n", {"n1": 5, "n2": 2}),
        ("fe80::1\n[fe80::2]:3\n[fe80::3] slots=2\n", {"fe80::1": 1, "fe80::2": 3, "fe80::3": 2}),
        ("\ufeffn1\r\nn2:2\r\n", {"n1": 1, "n2": 2}),  # of Windows
    ],
)
def test_host_files_of_every_kind(text, slots, tmp_path):
    (tmp_path / "hosts").write_text(text, encoding="utf8")
    assert count_slots(tmp_path / "hosts", "HOSTFILE") == slots
    assert read_host_file(tmp_path / "hosts", "HOSTFILE") == tuple(slots)


def test_pitfall_pbs_names_a_host_once_for_each_process(tmp_path):
    (tmp_path / "nodes").write_text("x2n1\nx2n1\nx2n0\nx2n0\n")
    assert read_host_file(tmp_path / "nodes", "PBS_NODEFILE") == ("x2n1", "x2n0")


NO_HOSTS = ["n1,n2", "n[1-3]", "-oProxyCommand=x", "[fe80::1", "n1 slots=\N{SUPERSCRIPT TWO}", f"n1 slots={'9' * 5000}"]


@pytest.mark.parametrize("text", ["n1 slots=many", "n1:", "n1:x", "n1:0", *NO_HOSTS])
def test_a_wrong_line_is_told_with_its_number(text, tmp_path):
    (tmp_path / "hosts").write_text(f"n0\n{text}\n", encoding="utf8")
    with pytest.raises(LaunchError, match=r"HOSTFILE=.*hosts:2: expected 'HOST \[slots=N\]'"):
        count_slots(tmp_path / "hosts", "HOSTFILE")


def test_a_host_file_that_is_none(tmp_path):
    with pytest.raises(LaunchError, match=r"HOSTFILE=.*No such file"):
        read_host_file(tmp_path / "absent", "HOSTFILE")
    (tmp_path / "empty").write_text("# nothing\n")
    with pytest.raises(LaunchError, match="lists no host"):
        read_host_file(tmp_path / "empty", "HOSTFILE")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(LaunchError, match="not a text file"):
        read_host_file(tmp_path / "binary", "HOSTFILE")


@pytest.mark.parametrize(
    ("env", "hosts"),
    [
        ({"LSB_MCPU_HOSTS": "batch5 1 a01n01 42 a01n02 42"}, ("a01n01", "a01n02")),
        ({"LSB_MCPU_HOSTS": "a01n01 42 a01n02 42"}, ("a01n01", "a01n02")),
        ({"LSB_HOSTS": "batch5 a1 a1 a2 a2"}, ("a1", "a2")),
        ({"LSB_HOSTS": "a1 a2"}, ("a1", "a2")),
        ({"LSB_HOSTS": "a1"}, ("a1",)),
        ({"LSB_MCPU_HOSTS": "a1 2", "LSB_HOSTS": "a2 a2"}, ("a1",)),
        ({"LSB_DJOB_RANKFILE": "/no/such", "LSB_HOSTS": "a1 a1"}, ("a1",)),
    ],
)
def test_lsf_hosts(env, hosts):
    assert lsf_hosts(env) == hosts


def test_lsf_files_come_before_its_lists(tmp_path):
    (tmp_path / "ranks").write_text("batch5\na1\na1\na2\na2\n")
    (tmp_path / "hosts").write_text("b1\nb1\n")
    env = {"LSB_DJOB_HOSTFILE": str(tmp_path / "hosts"), "LSB_HOSTS": "c1"}
    assert lsf_hosts(env) == ("b1",)
    assert lsf_hosts(env | {"LSB_DJOB_RANKFILE": str(tmp_path / "ranks")}) == ("a1", "a2")


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({}, "none of LSB_DJOB_RANKFILE, .* is set"),
        ({"LSB_MCPU_HOSTS": "a 1 b"}, "LSB_MCPU_HOSTS='a 1 b' is not of the form"),
        ({"LSB_DJOB_RANKFILE": "/no/such"}, "LSB_DJOB_RANKFILE=/no/such: No such file"),
    ],
)
def test_wrong_lsf_variables_are_told(env, message):
    with pytest.raises(LaunchError, match=message):
        lsf_hosts(env)


def test_this_host_goes_by_several_names():
    assert is_this_host("localhost")
    assert is_this_host(this_host() + ".some.domain")
    assert not is_this_host("elsewhere")
