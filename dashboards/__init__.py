"""Grafana boards and Prometheus rules, generated from the metric catalogue, and ways to bring them to a server.

``boards`` and ``generate`` need the development dependency ``grafana-foundation-sdk``; nothing else here imports them.
"""
