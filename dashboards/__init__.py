"""Grafana boards and Prometheus rules, generated from the metric catalogue."""
