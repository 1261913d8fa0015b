"""A dump of Wikipedia: pages, and the text of their markup."""
