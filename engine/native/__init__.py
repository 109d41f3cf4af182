"""The CPU path for quantised Llamas: weights kept packed, one native call a step."""
