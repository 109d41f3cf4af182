"""A hardware model behind the engine's own scheduler."""
