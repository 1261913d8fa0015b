"""An engine on torch alone: flat buffers that ranks share, and collectives that run in the background."""
