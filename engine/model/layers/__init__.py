"""Layers that the families share, written once for any number of ranks (``engine.parallel.ports.Place``)."""
