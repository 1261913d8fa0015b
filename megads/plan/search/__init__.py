"""Which layouts a model can have on so many hosts, how fast each is, and why each that loses does. No torch."""
