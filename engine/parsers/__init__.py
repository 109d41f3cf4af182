"""From what a model writes to what a client reads: reasoning, tool calls and the answer, as the text comes in."""
