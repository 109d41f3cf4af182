"""Workloads, search space, objective, search, evaluators, verification and exports."""
