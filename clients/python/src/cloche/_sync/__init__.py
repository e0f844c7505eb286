"""The client for ordinary programs, generated from _async (scripts/generate_sync.py)."""
