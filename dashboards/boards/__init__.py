"""The four boards. Each module has ``build``, which returns the board's JSON; all need ``grafana-foundation-sdk``."""
