"""The shared vocabulary: units, clock, configuration, SLOs, records, results and errors."""
