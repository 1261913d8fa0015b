"""``megads doctor`` and ``megads doctor --gradients`` as a user calls them."""

import json
import shlex
import signal
import socket
import sys
import time

import pytest


@pytest.mark.parametrize(
    "settings",
    [
        {"TP": "2", "PP": "2", "WALL_CLOCK_BREAKDOWN": "1"},
        {"SP": "2", "ZERO_STAGE": "3", "DTYPE": "bf16", "RECOMPUTE": "full"},
        # What concerns the user's own model and batches only must not stop the check.
        {
            **{"PP": "2", "STEPS_PER_PRINT": "1", "LR_WARMUP_ITERS": "100", "VAL_SPLIT": "0", "MIN_LOSS_SCALE": "1024"},
            "DS_CONFIG_OVERRIDES": '{"train_batch_size": 1024, "zero_optimization": {"reduce_bucket_size": 100000}}',
        },
    ],
    ids=["tp2pp2", "sp2zero3", "of-a-large-run"],
)
def test_a_layout_is_compared_with_one_rank(megads, settings):
    done = megads("doctor", "--gradients", **settings)
    assert done.returncode == 0, done.stderr
    assert "this layout computes what one rank computes" in done.stdout
    assert done.stderr == ""
    assert list(megads.folder.iterdir()) == []


def test_an_impossible_layout_is_refused(megads):
    done = megads("doctor", "--gradients", PP="2", ZERO_STAGE="3", ENGINE="deepspeed")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "use ZERO_STAGE=1, PP=1 or ENGINE=native" in done.stderr
    assert list(megads.folder.iterdir()) == []


def test_more_ranks_than_the_host_can_hold_are_refused(megads):
    done = megads("doctor", "--gradients", TP="512")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "of memory for 512 ranks" in done.stderr
    assert " fit: lower TP=512, PP=1, SP=1 or DP=1, or use more hosts" in done.stderr


STAGES = (
    *("machine", "python", "checkout", "run folder", "accelerators", "vendor", "limits", "names", "port"),
    *("store", "versions", "clocks", "addresses", "devices", "products", "disk"),
    *("gloo", "backend", "host", "host pairs", "all ranks"),
    *("speed: host", "speed: pairs", "speed: all", "as a run"),
)


@pytest.mark.mpi
@pytest.mark.parametrize(("starter", "ranks"), [("local", 4), ("openmpi", 2), ("mpich", 2)])
def test_a_host_that_is_right_passes(megads, starter, ranks):
    done = megads("doctor", "--json", LAUNCH_WITH=starter, NGPU_PER_HOST=str(ranks))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["ok"], found["exit_code"]) == (True, 0)
    assert tuple(each["stage"] for each in found["stages"]) == STAGES
    skipped = [each["stage"] for each in found["stages"] if each["status"] == "skipped"]
    assert skipped == ["host pairs", "speed: pairs", "speed: all"], "there is one host"
    speed = next(each for each in found["stages"] if each["stage"] == "speed: host")
    assert {row["collective"] for row in speed["data"]["hosts"]} >= {"all_reduce", "broadcast"}
    assert f"{ranks} ranks on 1 host joined at 127.0.0.1:" in done.stderr
    assert list(megads.folder.iterdir()) == []


def test_one_rank_passes_with_a_line_for_every_stage(megads):
    done = megads("doctor")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    names = [line[:14].strip() for line in done.stdout.splitlines() if line[:1].strip()]
    assert tuple(names) == (*STAGES, "doctor")
    assert "all right" in done.stdout.splitlines()[-1]


@pytest.mark.mpi
def test_a_rank_that_never_arrives_is_named_with_its_host(megads):
    path = megads.plant("if RANK == '1': time.sleep(300)\n")
    started = time.monotonic()
    done = megads("doctor", "--timeout", "4", LAUNCH_WITH="openmpi", NGPU_PER_HOST="2", PYTHONPATH=path)
    assert done.returncode == 1
    assert f"no answer within 4 s from rank 1 (host {socket.gethostname()})" in done.stdout
    assert "versions       skipped" in done.stdout
    assert "WRONG: store" in done.stdout.splitlines()[-1]
    assert time.monotonic() - started < 60


def test_a_rank_0_that_never_arrives_is_told_by_another(megads):
    path = megads.plant("if RANK == '0': time.sleep(300)\n")
    done = megads("doctor", "--timeout", "4", LAUNCH_WITH="local", NGPU_PER_HOST="2", PYTHONPATH=path)
    assert done.returncode == 1
    assert f"[rank 1 host {socket.gethostname()}] no answer at MASTER_ADDR=127.0.0.1" in done.stderr
    assert "ranks          failed" in done.stdout
    assert list(megads.folder.iterdir()) == []


def test_a_rank_that_hangs_in_a_stage_is_named_with_its_place(megads):
    text = (
        "if RANK == '1':\n"
        "    import megads.doctor.ranks.collectives as c\n"
        "    c.CHECKS['all_gather'] = lambda *_: time.sleep(300)\n"
    )
    path = megads.plant(text)
    done = megads("doctor", "--timeout", "5", LAUNCH_WITH="local", NGPU_PER_HOST="2", PYTHONPATH=path)
    assert done.returncode == 1
    line = next(line for line in done.stdout.splitlines() if line.startswith("backend"))
    assert "not finished in 5 s" in line
    assert f"in all_gather fp32: rank 1 (host {socket.gethostname()})" in line
    assert "sitecustomize.py" in done.stdout
    assert "as a run       skipped" in done.stdout


@pytest.mark.mpi
def test_ctrl_c_ends_it_at_once(megads):
    path = megads.plant("if RANK == '1': time.sleep(300)\n")
    process = megads.start("doctor", LAUNCH_WITH="openmpi", NGPU_PER_HOST="2", PYTHONPATH=path)
    for line in process.stdout:
        if line.startswith("port"):
            break
    time.sleep(1.0)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, out + err
    assert "saving" not in err
    assert out.splitlines()[-1].split() == ["doctor", "interrupted"]
    assert list(megads.folder.iterdir()) == []


@pytest.mark.mpi
def test_two_slurm_nodes_pass(megads, slurm):
    env = megads.env(NGPU_PER_HOST="2")
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in env.items() if name != "PATH")
    command = shlex.join([sys.executable, "-m", "megads", "doctor", "--json", "--timeout", "60"])
    script = f"{exports}cd {megads.folder}\n{command} 2>stages || {{ cat stages; false; }}\n"
    printed = slurm.script(script, "-N2", "-n4", "--ntasks-per-node=2", name="doctor.sh", timeout_s=200)
    stages = {each["stage"]: each for each in json.loads(printed)["stages"]}
    assert stages["machine"]["data"]["scheduler"] == "slurm"
    assert stages["store"]["data"]["hosts"] == {"m1": [0, 1], "m2": [2, 3]}
    assert {name for name, each in stages.items() if each["status"] != "ok"} == set()
    assert stages["speed: pairs"]["text"].startswith("1 pair of hosts; all_reduce of 4 MiB: ")
    assert stages["speed: all"]["data"][0]["bytes"] == 2**14
