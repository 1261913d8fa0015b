from megads.config.setting import Origin
from megads.launch.job import environment_names


def test_a_variable_that_decided_several_settings_is_named_once():
    twice = Origin("env", "DISTRIBUTE_SAVED_ACTIVATIONS")
    adopted = Origin("env", "DS_CONFIG_OVERRIDES steps_per_print")
    origins = {"a": twice, "b": Origin("default"), "c": twice, "d": adopted}
    assert environment_names(origins) == ["DISTRIBUTE_SAVED_ACTIVATIONS", "DS_CONFIG_OVERRIDES"]
