"""A dry run of any rank: the real engine on tensors without data, what it would send and what it would hold."""
