"""Results in SQL: tables, repository and migrations."""
