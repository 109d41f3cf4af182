"""Blocks, hashes and the prefix cache: no tensor is ever seen here."""
