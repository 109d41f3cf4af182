"""Generators and readers of workloads."""
