"""Names of environment variables: settings, their aliases, slips, and names of other toolkits."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Iterator, Mapping

from megads.config.sources.env_names_elsewhere import FOREIGN
from megads.config.sources.parse import FALSE, parse, switch
from megads.config.tree import extra, settings
from megads.errors import ConfigError

STRICT = "MEGADS_STRICT"
PROGRAM_NAMES = ("MEGADS_BACKEND", "MEGADS_DEVICE", "MEGADS_PEAK_TFLOPS", "MEGADS_PYTHON", "MEGADS_ROOT", STRICT)
"""Variables of the program that are not settings of a run."""

INTERNAL = (
    *("MEGADS_ACTIVE", "MEGADS_ATTEMPT", "MEGADS_COMMAND", "MEGADS_ENDS_AT", "MEGADS_EXTRAS", "MEGADS_FOUND_PYTHON"),
    *("MEGADS_IN_PLACE", "MEGADS_LOCAL_RANK", "MEGADS_LOCAL_SIZE", "MEGADS_NO_VENV", "MEGADS_NUM_RANKS"),
    *("MEGADS_RANK", "MEGADS_REQUIRE_ALL", "MEGADS_SITE_PYTHON", "MEGADS_TEST_WORKERS", "MEGADS_TOKEN"),
    *("MEGADS_WATCHED", "MEGADS_WORLD_SIZE"),
)
"""Variables that parts of the program pass to each other."""

# Variables of argonne-lcf/Megatron-DeepSpeed (ALCF/helpers.sh and what it calls) and of ezpz.
# Ignoring one of these would train something else than the user asked for.
REFUSED = {
    "NOOP": "a dry run is `megads train --dry-run`; NOOP",
    "TIMING_STR": "passing arguments through",
}

_OWN_LOG = "metrics go to metrics.jsonl in the run folder"
_OWN_BACKEND = "the backend follows from the device; MEGADS_BACKEND overrides it"
_OWN_LAUNCHER = "use LAUNCH_WITH"
_OWN_DEBUG = "use LOG_LEVEL"
# These change what is shown or how ranks start, not what is trained.
NO_EFFECT = {
    **dict.fromkeys(
        ("FLOPS_PROFILER_TOP_MODULES", "FLOPS_PROFILER_DETAILED", "FLOPS_PROFILER_OUTPUT"),
        "FLOPS_PROFILE=1 writes one table of all modules; FLOPS_PROFILE_DEPTH says how deep",
    ),
    "AZUREML_EXPERIMENT_ID": _OWN_LOG,
    "BE": _OWN_BACKEND,
    "CCL": _OWN_BACKEND,
    "DATA_PARENT": "name the data in DATA_FILE_LIST",
    "DEBUG": _OWN_DEBUG,
    "DLIO_PROFILER_DATASET_DIR": "PROFILE=FIRST-LAST traces steps",
    "DUMP_SKIPPED_ITERS": _OWN_LOG,
    "DUMP_TOKENS": _OWN_LOG,
    "EXEC": "megads has one program",
    "EZPZ_LOG_ALL_RANKS": _OWN_DEBUG,
    "EZPZ_LOG_LEVEL": _OWN_DEBUG,
    "EZPZ_SCHEDULER": _OWN_LAUNCHER,
    "GPUS_PER_NODE": "use NGPU_PER_HOST",
    "LAUNCH_CMD": _OWN_LAUNCHER,
    "MICS_SHARD_SIZE": "no toolkit reads it",
    "NCCL": _OWN_BACKEND,
    "PYINSTRUMENT_PROFILER": "PROFILE=FIRST-LAST traces steps",
    "SUBMIT_SCRIPTS": _OWN_LOG,
    "TIMING_LOG_LEVEL": _OWN_LOG,
    "TORCH_BACKEND": _OWN_BACKEND,
    "TORCH_DEVICE": "use MEGADS_DEVICE",
    "TORCH_PROFILER_ENABLE": "PROFILE=FIRST-LAST traces steps",
    "WANDB_DIR": "its files are in the run folder, under wandb",
    "WANDB_RESUME": "a resumed run continues its own; WANDB_RUN_ID names another run to continue",
}

# Set by launchers, schedulers and the operating system; megads reads them where it must.
SYSTEM = frozenset(
    (
        *("CFLAGS", "CUDA_DEVICE_MAX_CONNECTIONS", "GROUP_RANK", "HOST", "HOSTNAME", "LD_LIBRARY_PATH", "LOCAL_RANK"),
        *("LOCAL_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "MPI_ROOT", "NAME", "NODE_RANK"),
        *("NUMEXPR_MAX_THREADS", "OMP_NUM_THREADS", "PATH", "RANK", "WORLD_SIZE", "http_proxy", "https_proxy"),
    )
)
_SYSTEM_PREFIXES = (
    *(
        "CCL_",
        "CUDA_",
        "FI_",
        "FLUX_",
        "HIP_",
        "LSB_",
        "MPICH_",
        "MPI_",
        "NCCL_",
        "NVTE_",
        "OMPI_",
        "PALS_",
        "PBS_",
        "PMIX_",
    ),
    *("PMI_", "PRTE_", "PYTHON", "RCCL_", "SLURM_", "TORCHELASTIC_", "TORCH_NCCL_", "UCX_", "ZE_"),
)


@functools.cache
def names_of(setting: str) -> tuple[str, ...]:
    """Return the variable of a setting and its aliases."""
    field = dict(settings())[setting]
    return (extra(field, "env"), *extra(field, "aliases"))


@functools.cache
def setting_names() -> tuple[str, ...]:
    """Return every variable that some setting reads."""
    return tuple(dict.fromkeys(_setting_names()))


def _setting_names() -> Iterator[str]:
    for name, field in settings():
        yield from names_of(name)
        yield from extra(field, "switches")


def refuse_unsupported(env: Mapping[str, str]) -> None:
    """Refuse variables of other toolkits that ask for what this version does not do.

    Raises:
        ConfigError: naming the variable and how to continue without it.
    """
    for name, what in REFUSED.items():
        value = env.get(name, "").strip()
        if value and value.lower() not in FALSE:
            raise ConfigError(f"{name}={value}: {what} is not supported yet; unset {name}")


def name_notes(env: Mapping[str, str]) -> list[str]:
    """Return a line for every variable that has no effect here, or looks like a misspelt setting.

    Raises:
        ConfigError: there is one, and ``MEGADS_STRICT`` is on; or that is not a switch.
    """
    notes = {name: f"{name}={env[name]} has no effect: {why}" for name, why in NO_EFFECT.items() if _is_set(env, name)}
    for name in sorted(env):
        if not _is_set(env, name) or name in _known_names() or name in REFUSED or name in NO_EFFECT or name in SYSTEM:
            continue
        if name.startswith(_SYSTEM_PREFIXES):
            continue
        if meant := _meant_by(name, env[name]):
            notes[name] = f"{name}={env[name]} has no effect: {name} is not a setting; use {meant}"
        elif close := _closest(name):
            notes[name] = f"{name} is not a setting; did you mean {close}?"
        elif name.startswith("MEGADS_"):
            notes[name] = f"{name}={env[name]} has no effect: megads has no variable of this name"
    if notes and _is_strict(env):
        name, note = next(iter(notes.items()))
        raise ConfigError(f"{note}; {STRICT}={env[STRICT]} rejects it: unset {name} or unset {STRICT}")
    return list(notes.values())


def _is_set(env: Mapping[str, str], name: str) -> bool:
    return bool(env.get(name, "").strip())


def _meant_by(name: str, text: str) -> str:
    """Return the variable that a name of another toolkit means; a short name may be something else altogether."""
    meant = FOREIGN.get(name, "")
    if meant and len(name) <= 3:
        try:
            parse(text, next(field for _, field in settings() if extra(field, "env") == meant))
        except ValueError:
            return ""
    return meant


def _is_strict(env: Mapping[str, str]) -> bool:
    try:
        return bool(env.get(STRICT)) and switch(env[STRICT])
    except ValueError as error:
        raise ConfigError(f"env {STRICT}: {error}") from None


@functools.cache
def _known_names() -> frozenset[str]:
    return frozenset((*setting_names(), *PROGRAM_NAMES, *INTERNAL))


def _closest(name: str) -> str:
    """Return the name that ``name`` is a slip of, empty if it is none."""
    known = [*setting_names(), *PROGRAM_NAMES]
    if len(name) <= 4:
        # A letter typed twice; anything shorter is alike to too much.
        single = {name[:place] + name[place + 1 :] for place in range(1, len(name)) if name[place] == name[place - 1]}
        twice = [each for each in known if each in single]
        if twice or len(name) <= 3:
            return twice[0] if twice else ""
    return next(iter(difflib.get_close_matches(name, known, n=1, cutoff=0.85)), "")
