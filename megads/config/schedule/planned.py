"""What a run is planned for, however far it trains today: the length of its order and schedule, or an order for any."""

from __future__ import annotations

from megads.config.rules.advice import Broken, Problem
from megads.config.schedule.batches import BatchSchedule
from megads.config.setting import Origin
from megads.config.sources.resolve import PLANNED, Values, rank_of
from megads.config.tree import env_name
from megads.errors import ConfigError
from megads.families.table import FAMILIES
from megads.text.plural import plural

_TOKENS, _SAMPLES, _ITERS = PLANNED


def fill_planned(values: Values) -> None:
    """Fill the planned length in its other units; all stay 0 where nobody gave one.

    A length of tokens or samples is rounded to whole steps, as that of the run, so that a run of this length
    has the order and the schedule of the plan. What a checkpoint says is kept to the sample.

    Raises:
        ConfigError: two lengths differ.
        Broken: the run is longer than its plan.
    """
    sizes = BatchSchedule.parse(values["train.rampup_batch_size"], values["train.global_batch"])
    seq, iters = values["model.seq_length"], values["train.train_iters"]
    steps = {}
    if values[_TOKENS]:
        steps[_TOKENS] = sizes.iterations_within(values[_TOKENS] // seq)
    if values[_SAMPLES]:
        steps[_SAMPLES] = sizes.iterations_within(values[_SAMPLES])
    if values[_ITERS]:
        steps[_ITERS] = values[_ITERS]
    if not steps:
        return
    if len(set(steps.values())) > 1:
        each = ", ".join(f"{values.shown(name)} is {plural(count, 'step')}" for name, count in steps.items())
        raise ConfigError(f"{each} of GLOBAL_BATCH={sizes.final} x SEQ={seq}; set only one of them")
    name, planned = next(iter(steps.items()))
    if values.origins[name].layer == "checkpoint" and planned >= iters:
        values.fill(_ITERS, planned, "PLANNED_SAMPLES / GLOBAL_BATCH")
        values.fill(_TOKENS, values[_SAMPLES] * seq, "PLANNED_SAMPLES x SEQ")
        return
    if planned < iters and not values["train.evaluate_only"]:
        least = {_ITERS: iters, _SAMPLES: sizes.samples_after(iters), _TOKENS: sizes.samples_after(iters) * seq}
        text = f"{values.shown(name)} is {plural(planned, 'step')}, less than {values.shown('train.train_iters')}"
        raise Broken(Problem(text, [{name: least[name]}], "a shorter run", rule="planned length"))
    samples, ramp = sizes.samples_after(planned), ", less in the ramp" if sizes.is_ramp else ""
    values.fill(_ITERS, planned, f"of {env_name(name)}")
    if values[_SAMPLES]:
        values.put(_SAMPLES, samples, values.origins[_SAMPLES])  # whole steps
    values.fill(_SAMPLES, samples, "PLANNED_ITERS x GLOBAL_BATCH" + ramp)
    values.fill(_TOKENS, samples * seq, "PLANNED_ITERS x GLOBAL_BATCH x SEQ" + ramp)


def settle_order(values: Values) -> None:
    """Fill what ``SAMPLE_ORDER=growing`` decides about the files of a corpus.

    Raises:
        ConfigError: the user asks for a shuffle across files, or the model's samples have no such order.
    """
    order = "data.sample_order"
    if values[order] != "growing":
        return
    samples = FAMILIES[values["model.family"]].samples
    if samples != "causal" and not values["finetune.task"]:
        raise ConfigError(
            f"{values.shown(order)}: the samples of MODEL_FAMILY={values['model.family']} are made for the length of "
            "the run; use SAMPLE_ORDER=planned, and PLANNED_ITERS for a run that is to grow"
        )
    for name, needed in (("data.blend_in_corpus", True), ("data.shuffle_in_corpus", False)):
        if values[name] == needed:
            continue
        if values.rank(name) >= rank_of(Origin("config")) and values.origins[name].layer != "derived":
            raise ConfigError(
                f"{values.shown(name)} needs the length of the run, and {values.shown(order)} is the same for "
                f"every length; leave {env_name(name)} unset, or use SAMPLE_ORDER=planned"
            )
        values.derive(name, needed, "SAMPLE_ORDER=growing")
