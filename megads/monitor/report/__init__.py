"""One page about a campaign: its jobs, where their time went, losses, events, energy and cost."""
