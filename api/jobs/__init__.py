"""The service for tuning jobs: studies, their results and events, plans, energy, devices, caps and keys over HTTP."""
