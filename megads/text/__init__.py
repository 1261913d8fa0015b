"""Words of messages: plurals, units, quotes, and what must not be shown. Imports nothing of the package."""
