"""Output that must have a form: JSON of a schema, a regular expression, one of several texts, a grammar."""
