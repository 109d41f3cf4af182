"""Whether a configuration still gives the right answers."""
