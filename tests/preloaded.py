"""What the server has imported that pools with a device are forked from; see :class:`tests.ranks.Ranks`."""

from tests.ranks import import_what_ranks_need

import_what_ranks_need()
