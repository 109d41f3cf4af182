"""Finds the launches that take the least energy, or time, on the device at hand."""
