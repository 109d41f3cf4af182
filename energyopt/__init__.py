"""energyopt: tokens per joule under a latency SLO. This module holds the version and imports nothing."""

__version__ = "0.1.0"
