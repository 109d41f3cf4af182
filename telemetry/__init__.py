"""Collectors, the energy curve, attribution, the metric catalogue and power control."""
