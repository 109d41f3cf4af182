"""A hardware model behind the engine's own scheduler: time and joules of a step, predicted from data sheets."""
