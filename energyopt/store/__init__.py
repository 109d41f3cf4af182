"""Where studies are kept: in SQL (``open_store``) or, for tests and dry runs, in memory."""
