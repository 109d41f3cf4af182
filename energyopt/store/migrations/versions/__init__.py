"""The revisions, oldest first: v0001 is the first schema that was ever written."""
