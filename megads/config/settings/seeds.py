"""Seeds: one for everything, or one for each thing that is drawn."""

from __future__ import annotations

from megads.config.setting import Section, setting


class SeedSettings(Section):
    """Part of :class:`megads.config.schema.TrainConfig`: what random numbers begin with."""

    seed: int = setting(
        1234, env="SEED", flags={"--seed": None}, help="seed of weights, data order and dropout", ge=0, lt=2**32
    )
    weights_seed: int = setting(
        0, env="WEIGHTS_SEED", aliases=("INIT_SEED",), help="seed of the initial weights only; 0: SEED", ge=0, lt=2**32
    )
    data_seed: int = setting(0, env="DATA_SEED", help="seed of the sample order only; 0: SEED", ge=0, lt=2**32)
    dropout_seed: int = setting(0, env="DROPOUT_SEED", help="seed of dropout only; 0: SEED", ge=0, lt=2**32)

    @property
    def seed_of_weights(self) -> int:
        """What initial weights are drawn with."""
        return self.weights_seed or self.seed

    @property
    def seed_of_data(self) -> int:
        """What samples are shuffled with."""
        return self.data_seed or self.seed

    @property
    def seed_of_dropout(self) -> int:
        """What dropout is drawn with, see ``megads.comm.rng``."""
        return self.dropout_seed or self.seed
