"""Places: every machine of envs/ and every device gives one; what is wrong is one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from megads.config.sources.presets import read_machine
from megads.errors import ConfigError
from megads.plan.places.accelerators import ACCELERATORS
from megads.plan.places.place import DEVICES, Level, Queue, place_of

ROOT = Path(__file__).parents[3]
MACHINES = sorted(path.stem for path in (ROOT / "envs").glob("*.yaml"))
PLANNED = [name for name in MACHINES if read_machine(name, ROOT).facts.plan.accelerator]


@pytest.mark.parametrize("name", [*PLANNED, *DEVICES])
def test_every_machine_and_device_is_a_place(name):
    place = place_of(name, root=ROOT)
    assert (place.name, place.per_host > 0, bool(place.source)) == (name, True, True)
    assert [each.ranks for each in place.levels] == [*sorted(each.ranks for each in place.levels[:-1]), 0]
    assert all(each.gb_s > 0 and 0 < each.latency_s < 1e-3 and each.what for each in place.levels)
    assert place.pue >= 1
    assert place.grams_per_kwh > 0
    assert place.host_mtbf_hours > 0
    assert place.start_s > 0
    assert place.peak_tflops("fp16") > (100 if name not in ("cpu", "pvc") else 4)


@pytest.mark.parametrize("name", ["aurora", "frontier", "perlmutter", "polaris"])
def test_the_facts_of_a_machine_are_those_of_its_file(name):
    facts = read_machine(name, ROOT).facts
    place = place_of(name, root=ROOT)
    assert place.per_host == facts.ranks_per_host
    assert place.hosts == facts.plan.hosts > 100
    assert place.levels[-2].ranks == place.per_host or place.levels[-1].what == "between groups of switches"
    assert place.queues[0] == Queue(
        facts.submit.queues[0].name,
        *(getattr(facts.submit.queues[0].hosts, each) for each in ("first", "last")),
        facts.submit.queues[0].hours,
    )
    # A rank's memory as torch reports it is a little less than the data sheet's.
    assert 0.96 < facts.device_memory_gib / place.device.memory_gib <= 1


def test_neighbours_are_joined_by_the_nearest_level():
    place = place_of("PVC", root=ROOT)
    whats = [place.level(ranks).what for ranks in (1, 2, 3, 12, 13, 99999)]
    assert whats == ["inside a card", "inside a card", "inside a host", "inside a host", *["between hosts"] * 2]
    assert place.level(13) == Level(0, 16.7, 15e-6, "between hosts")


def test_a_rack_may_join_hosts():
    levels = [(each.ranks, each.gb_s, each.what) for each in place_of("GB200").levels]
    assert levels == [(4, 900, "inside a host"), (72, 900, "inside a rack"), (0, 50, "between hosts")]


def test_memory_is_what_torch_reports():
    assert place_of("h100").memory_gib == 79.1 < place_of("h100").device.memory_gib
    assert place_of("polaris", root=ROOT).memory_gib == read_machine("polaris", ROOT).facts.device_memory_gib


def machine(tmp_path: Path, facts: str) -> Path:
    (tmp_path / "envs").mkdir()
    (tmp_path / "envs/mine.yaml").write_text(f"facts: {{{facts}}}\n")
    return tmp_path


def test_a_host_with_fewer_devices_shares_its_adapters_among_fewer(tmp_path):
    root = machine(tmp_path, "ranks_per_host: 4, plan: {accelerator: h100}")
    place = place_of("mine", root=root)
    assert [(each.ranks, each.gb_s) for each in place.levels] == [(4, 450), (0, 100)]
    assert "links and network of the usual host with 4 of these devices" in place.assumed


def test_facts_of_the_sites():
    aurora, frontier = (place_of(name, root=ROOT) for name in ("aurora", "frontier"))
    assert [(each.ranks, each.what) for each in frontier.levels] == [
        (2, "inside a card"),
        (8, "inside a host"),
        (8 * 128, "inside a group of switches"),
        (0, "between groups of switches"),
    ]
    assert aurora.level(12 * 64).gb_s > aurora.level(12 * 64 + 1).gb_s
    assert (aurora.grams_per_kwh, frontier.grams_per_kwh) == (215, 300)
    assert aurora.peak_tflops("bf16") == 364
    assert 3000 < aurora.host_watts < 6 * 1000
    assert [each.name for each in aurora.queues if each.min_hosts <= 256 <= (each.max_hosts or 256)] == [
        "debug-scaling",
        "prod",
    ]


def test_the_source_is_of_the_hosts_that_the_machine_has():
    assert place_of("polaris", root=ROOT).source == "envs/polaris.yaml; NVIDIA A100 40GB data sheet"
    assert "eight 200 Gb/s adapters" in place_of("a100-40").source


def test_what_is_known_is_not_assumed(tmp_path):
    known = "hosts: 9, host_watts: 2000, pue: 1.1, grams_per_kwh: 50, storage_gb_s: 10, host_mtbf_hours: 1, start_s: 5"
    links = "links: [{what: all, ranks: 0, gb_s: 7, latency_us: 2}]"
    place = place_of("mine", root=machine(tmp_path, f"plan: {{accelerator: a100, {known}, {links}}}"))
    assert place.assumed == ()
    assert (place.hosts, place.host_watts, place.pue, place.start_s) == (9, 2000, 1.1, 5)
    assert place.levels == (Level(0, 7, 2e-6, "all"),)


def test_another_device_of_the_same_machine(tmp_path):
    root = machine(tmp_path, "device_memory_gib: 39, plan: {accelerator: a100, host_watts: 1, hosts: 5}")
    place = place_of("mine", root=root, device="H200")
    assert (place.device, place.hosts) == (ACCELERATORS["h200"], 5)
    # What belongs to the other device is not taken over.
    assert (place.memory_gib, place.host_watts) == (139.8, 1.25 * 8 * 700)
    assert place_of("mine", root=root, device="A100") == place_of("mine", root=root)


@pytest.mark.parametrize(
    ("facts", "name", "device", "said"),
    [
        ("device: cpu", "mine", "", "machine mine: its file does not say which device a rank has; pass --device, one"),
        ("plan: {accelerator: h10}", "mine", "", "machine mine: no device 'h10'; known devices: "),
        ("plan: {accelerator: h100}", "mine", "tpu", "machine mine: no device 'tpu'; known devices: "),
        (
            "plan: {accelerator: h100, region: Mars}",
            "mine",
            "",
            "machine mine: no region 'Mars'; use the three letters",
        ),
        ("plan: {gpu: h100}", "mine", "", "machine mine.yaml: facts.plan.gpu: no such fact; known facts: "),
        ("plan: {pue: -1}", "mine", "", "machine mine.yaml: facts.plan.pue: "),
        ("plan: {hosts: some}", "mine", "", "machine mine.yaml: facts.plan.hosts: "),
        ("plan: {links: [{ranks: 2, gb_s: 1}]}", "mine", "", "machine mine.yaml: facts.plan.links.0.what: "),
        ("plan: {links: [{what: x, ranks: 2, gb_s: 0}]}", "mine", "", "machine mine.yaml: facts.plan.links.0.gb_s: "),
        ("device: cpu", "min", "", "no machine and no device 'min'; known machines: mine; known devices: v100, "),
        ("device: cpu", "h10", "", "no machine and no device 'h10'; known machines: mine; known devices: v100, "),
        ("device: cpu", "h100", "a100", "h100 is a device; pass a100 alone, or a machine with it"),
    ],
)
def test_what_is_wrong_is_one_line(tmp_path, facts, name, device, said):
    with pytest.raises(ConfigError) as told:
        place_of(name, root=machine(tmp_path, facts), device=device)
    assert str(told.value).startswith(said)
    assert "\n" not in str(told.value)


def test_without_a_checkout_there_are_devices_only():
    with pytest.raises(ConfigError, match=r"^no device 'aurora'; known devices: v100, .*, cpu"):
        place_of("aurora")


def test_levels_out_of_order_are_refused(tmp_path):
    links = "links: [{what: a, ranks: 8, gb_s: 1}, {what: b, ranks: 2, gb_s: 1}, {what: c, ranks: 0, gb_s: 1}]"
    with pytest.raises(
        ConfigError, match=r"machine mine.yaml: facts.plan.links: .* the last one all .* not \[8, 2, 0\]"
    ):
        place_of("mine", root=machine(tmp_path, f"plan: {{accelerator: a100, {links}}}"))


def test_a_dtype_without_units_is_refused():
    place = place_of("a100", root=ROOT)
    assert place.peak_tflops("bf16") == 312
    with pytest.raises(ConfigError, match=r"DTYPE=tf32: .* has no units for it; use DTYPE=bf16 or DTYPE=fp16"):
        place_of("mi250x", root=ROOT).peak_tflops("tf32")


def test_fp8_is_twice_as_fast_where_there_are_units():
    assert place_of("h100", root=ROOT).peak_tflops("fp8") == 2 * 989
    with pytest.raises(ConfigError, match=r"DTYPE=fp8: NVIDIA A100-SXM4-80GB of a100 has no units for it; use"):
        place_of("a100", root=ROOT).peak_tflops("fp8")
