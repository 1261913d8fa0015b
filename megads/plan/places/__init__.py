"""Where a run is planned: devices, hosts and what joins them, their electricity."""
