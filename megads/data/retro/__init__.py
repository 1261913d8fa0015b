"""The project folder of Retro: chunk database and neighbours, in Megatron's layout. Without torch."""
