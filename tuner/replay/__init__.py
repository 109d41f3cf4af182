"""Replays workloads against an engine and measures what its users would see."""
