"""Prefill here, decode there: handing the KV blocks of a prompt from one engine to another."""
