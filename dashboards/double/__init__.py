"""A Grafana in memory: as much of its HTTP API as provisioning touches, judged by a client's own integration tests."""
