"""The plain torch form of each operator: float32 arithmetic, no tricks, results in the inputs' type."""
